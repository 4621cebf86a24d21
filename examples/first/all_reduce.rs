//! Sums a vector over all ranks: `hexagram run -n 4 -- all-reduce`, or mpirun, srun, torchrun.
//! Without a launcher, four ranks run as threads of this program.

use hexagram::{Communicator, JoinOptions, Placement, ReduceOp, Result, TransportKind, World, testing};

fn sum(comm: &Communicator) -> Result<f32> {
    let mut numbers = vec![comm.rank() as f32; 1_000_000];
    comm.blocking().all_reduce(&mut numbers, ReduceOp::Sum)?;
    Ok(numbers[0])
}

fn main() -> Result<()> {
    if Placement::from_env()?.is_some() {
        let comm = Communicator::open(&World::join(&JoinOptions::default())?, 0)?;
        println!("rank {} of {}: {}", comm.rank(), comm.size(), sum(&comm)?);
        return Ok(());
    }
    println!("{:?}", testing::spawn(TransportKind::Shm, 4, |comm| sum(&comm))?);
    Ok(())
}

#[test]
fn it_runs() -> Result<()> {
    main()
}
