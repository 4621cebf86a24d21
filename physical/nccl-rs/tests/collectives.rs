//! What four ranks compute with each other.

use super::gpus::{Rank, SOON, close, ranks};
use nccl_rs::{DataType, Reduction, group};

const F32: DataType = DataType::Float32;

#[test]
fn sums_and_their_parts() {
    ranks(4, |r| {
        let on = r.communicator.on(r.gpu.stream());
        let mine = r.rank as f32 + 1.0;
        let x = r.gpu.memory(&[mine; 8]);
        let y = r.gpu.memory(&[0.0; 8]);
        // SAFETY: both are memory of the GPU with 8 floats, which nothing else uses.
        unsafe {
            r.done(on.all_reduce(x, y, 8, F32, Reduction::Sum));
            assert_eq!(r.gpu.read(y, 8), [10.0; 8]);
            r.done(on.all_reduce(y, y, 8, F32, Reduction::Average));
            assert_eq!(r.gpu.read(y, 8), [10.0; 8]);
            r.done(on.reduce(x, y, 8, F32, Reduction::Max, 2));
            assert_eq!(r.gpu.read(y, 8), if r.rank == 2 { [4.0; 8] } else { [10.0; 8] });
            r.done(on.reduce_scatter(x, y, 2, F32, Reduction::Product));
            assert_eq!(r.gpu.read(y, 2), [24.0; 2]);
        }
    });
}

#[test]
fn copies() {
    ranks(4, |r| {
        let on = r.communicator.on(r.gpu.stream());
        let x = r.gpu.memory(&[r.rank as f32; 2]);
        let y = r.gpu.memory(&[9.0; 8]);
        // SAFETY: memory of the GPU with 2 and 8 floats, which nothing else uses.
        unsafe {
            r.done(on.all_gather(x, y, 2, F32));
            assert_eq!(r.gpu.read(y, 8), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
            r.done(on.broadcast(x, x, 2, F32, 3));
            assert_eq!(r.gpu.read(x, 2), [3.0; 2]);
        }
    });
}

#[test]
fn calls_of_a_group_begin_together() {
    ranks(4, |r| {
        let on = r.communicator.on(r.gpu.stream());
        let (next, before) = ((r.rank + 1) % 4, (r.rank + 3) % 4);
        let x = r.gpu.memory(&[r.rank as f32; 2]);
        let y = r.gpu.memory(&[9.0; 2]);
        // SAFETY: memory of the GPU with 2 floats each, which nothing else uses.
        unsafe {
            r.done(group(|| {
                on.send(x, 2, F32, next)?;
                on.recv(y, 2, F32, before)
            }));
            assert_eq!(r.gpu.read(y, 2), [before as f32; 2]);
            r.done(group(|| {
                on.all_reduce(x, x, 2, F32, Reduction::Sum)?;
                group(|| on.all_reduce(y, y, 2, F32, Reduction::Min))
            }));
            assert_eq!(r.gpu.read(x, 2), [6.0; 2]);
            assert_eq!(r.gpu.read(y, 2), [0.0; 2]);
        }
        // A group of nothing is none.
        r.done(group(|| Ok(())));
    });
}

/// Sums 1 over a communicator, and returns its size.
fn counted(r: &Rank, communicator: &nccl_rs::Communicator) -> f32 {
    let x = r.gpu.memory(&[1.0]);
    // SAFETY: memory of the GPU with one float, which nothing else uses.
    unsafe { communicator.on(r.gpu.stream()).all_reduce(x, x, 1, F32, Reduction::Sum) }.unwrap();
    communicator.wait(SOON).unwrap();
    r.gpu.read(x, 1)[0]
}

#[test]
fn ranks_of_one_color_have_a_communicator() {
    ranks(4, |r| {
        let color = (r.rank < 3).then_some(r.rank % 2);
        let split = r.communicator.split(color, -(r.rank as i32)).unwrap().wait(SOON).unwrap();
        assert_eq!(split.is_some(), r.rank < 3);
        if let Some(split) = split {
            // Ranks 2 and 0 in this order, and rank 1.
            assert_eq!(split.ranks().unwrap(), 2 - r.rank % 2);
            assert_eq!(split.rank().unwrap(), usize::from(r.rank == 0));
            assert_eq!(counted(r, &split), 2.0 - (r.rank % 2) as f32);
            close(split);
        }
        assert_eq!(counted(r, &r.communicator), 4.0);
        assert_eq!((r.communicator.rank().unwrap(), r.communicator.ranks().unwrap()), (r.rank, 4));
    });
}
