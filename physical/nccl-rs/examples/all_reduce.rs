//! Sums over all GPUs of this machine, with a thread for each: `cargo run -p nccl-rs --example all_reduce`.
//!
//! Without NCCL it says so.

use cudarc::driver::{CudaContext, DevicePtrMut};
use nccl_rs::{Communicator, DataType, Reduction, UniqueId};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Carries out one rank, and returns the first element of the sum.
fn rank(id: UniqueId, rank: usize, ranks: usize) -> Result<f32, Box<dyn Error + Send + Sync>> {
    // The context becomes current on this thread.
    let context = CudaContext::new(rank)?;
    let stream = context.new_stream()?;
    let communicator = Communicator::new(id, rank, ranks)?;
    communicator.wait(LIMIT)?;

    let mut numbers = stream.clone_htod(&[rank as f32 + 1.0; 1000])?;
    {
        let (address, _written) = numbers.device_ptr_mut(&stream);
        let on = communicator.on(stream.cu_stream().cast());
        // SAFETY: the address is that of 1000 floats on this GPU, and this thread waits for the stream below.
        unsafe { on.all_reduce(address, address, 1000, DataType::Float32, Reduction::Sum) }?;
        communicator.wait(LIMIT)?;
    }
    let sum = stream.clone_dtoh(&numbers)?[0];
    stream.synchronize()?;

    communicator.finalize()?;
    communicator.wait(LIMIT)?;
    communicator.destroy()?;
    Ok(sum)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    println!("NCCL {}", nccl_rs::version()?);
    let id = UniqueId::new()?;
    let ranks = CudaContext::device_count()? as usize;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..ranks).map(|number| scope.spawn(move || rank(id, number, ranks))).collect();
        for (number, thread) in all.into_iter().enumerate() {
            match thread.join() {
                Ok(Ok(sum)) => println!("rank {number} of {ranks}: {sum}"),
                Ok(Err(error)) => println!("rank {number} of {ranks}: {error}"),
                Err(_) => println!("rank {number} of {ranks} has panicked"),
            }
        }
    });
    Ok(())
}
