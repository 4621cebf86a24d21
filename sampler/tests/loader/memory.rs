//! Batches in memory that the caller brings: filled there, used again, and missed with a name.

use super::support::{epoch, numbers, options};
use hexagram_sampler::dataset::Cause;
use hexagram_sampler::loader::{Actor, Array, Bytes, DataLoader, LoaderError, LoaderOptions, Memory};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Memory with known addresses, in a limited number of pieces.
struct Known {
    pieces: usize,
    given: Mutex<Vec<Range<usize>>>,
}

struct Piece(Vec<u128>, usize);

impl Bytes for Piece {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[self.1..]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[self.1..]
    }
}

impl Memory for Known {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Bytes>, Cause> {
        let mut given = self.given.lock().unwrap();
        if given.len() == self.pieces {
            return Err("all pieces are given away".into());
        }
        let mut piece = Piece(vec![0; (bytes + 64) / 16], 0);
        piece.1 = piece.0.as_ptr().align_offset(64) * 16;
        given.push(piece.bytes().as_ptr_range().start.addr()..piece.bytes().as_ptr_range().end.addr());
        Ok(Box::new(piece))
    }
}

fn loader(workers: usize, pieces: usize) -> (Arc<Known>, DataLoader<Array<usize>>) {
    let memory = Arc::new(Known { pieces, given: Mutex::default() });
    let given = LoaderOptions { memory: Some(memory.clone()), ..options(4, workers) };
    (memory, DataLoader::new(numbers(40), given).unwrap())
}

#[test]
fn workers_fill_the_memory_that_the_caller_brings() {
    for workers in [0, 2] {
        let (memory, mut loader) = loader(workers, 100);
        for _epoch in 0..3 {
            let mut all = Vec::new();
            for batch in loader.iter() {
                let batch = batch.unwrap();
                let at = batch.as_ptr().addr();
                assert!(memory.given.lock().unwrap().iter().any(|piece| piece.contains(&at)));
                all.extend_from_slice(&batch);
            }
            assert_eq!(all, (0..40).collect::<Vec<_>>());
        }
        assert_eq!(loader.pool().usage().in_use, 0);
        // One that the caller has, those that are ready, and those in the making.
        let given = memory.given.lock().unwrap().len();
        assert!(given <= 1 + 2 * workers + workers, "{given}");
    }
}

#[test]
fn memory_that_comes_to_an_end_is_named_with_the_worker() {
    for workers in [0, 2] {
        let (_, mut loader) = loader(workers, 0);
        let error = loader.iter().next().unwrap().unwrap_err();
        let LoaderError::Memory { worker, epoch: 0, .. } = &error else { panic!("{error}") };
        assert_eq!(matches!(worker, Actor::Caller), workers == 0);
        let text = error.to_string();
        assert!(text.contains("no memory for a batch of epoch 0: all pieces are given away"), "{text}");
    }
}

#[test]
fn what_stood_in_for_memory_that_had_come_to_an_end_is_not_used_again() {
    let (memory, mut loader) = loader(0, 2);
    let mut batches = loader.iter();
    let held: Vec<Array<usize>> = batches.by_ref().map_while(Result::ok).collect();
    assert_eq!(
        held.iter().map(|batch| batch.to_vec()).collect::<Vec<_>>().concat(),
        (0..8).collect::<Vec<_>>()
    );
    drop(batches);
    let held: Vec<Array<usize>> = held.into_iter().take(1).collect();
    for batch in loader.iter() {
        let at = batch.unwrap().as_ptr().addr();
        assert!(memory.given.lock().unwrap().iter().any(|piece| piece.contains(&at)));
    }
    assert_eq!(memory.given.lock().unwrap().len(), 2);
    drop(held);
    assert_eq!(epoch(&mut loader).concat().len(), 40);
}

#[test]
fn memory_that_is_too_small_is_refused() {
    struct Small;
    impl Memory for Small {
        fn allocate(&self, _: usize) -> Result<Box<dyn Bytes>, Cause> {
            Ok(Box::new(Piece(vec![0; 1], 0)))
        }
    }
    let given = LoaderOptions { memory: Some(Arc::new(Small)), ..options(4, 0) };
    let mut loader = DataLoader::new(numbers(40), given).unwrap();
    let error = loader.iter().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("16 bytes at 0x") && error.contains("are not 64 aligned to 64"), "{error}");
}
