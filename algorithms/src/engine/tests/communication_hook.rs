//! Buckets of a framework under the hooks of an algorithm, compared with the engine's own.

use super::*;
use crate::Record;
use crate::bytegrad::ByteGrad;
use crate::compressed_allreduce::CompressedAllReduce;
use hexagram_logical::Queue;

/// Gradients of a rank in a pass, for two buckets of four elements.
fn gradients(rank: usize, pass: usize) -> [Vec<f32>; 2] {
    [0, 1]
        .map(|bucket| (0..4).map(|at| ((7 * at + 3 * bucket + 5 * rank + pass) % 11) as f32 - 5.0).collect())
}

fn bucket(index: usize, is_last: bool, gradients: &[f32]) -> Result<FrameworkBucket> {
    let tensors = vec![(format!("p{index}").into(), vec![2, 2])];
    Ok(FrameworkBucket { index, is_last, gradients: Buffer::from_slice(gradients)?, tensors })
}

/// Memory of the test as the memory of a bucket of a framework.
fn lent(values: &mut [f32], index: usize, is_last: bool) -> FrameworkBucket {
    let address = std::ptr::NonNull::from(&mut *values).cast();
    // SAFETY: the caller keeps the values until the pass has ended, and does not touch them before.
    let gradients =
        unsafe { Buffer::over_foreign(&Queue::host(), address, DType::F32, values.len(), Arc::new(())) };
    let tensors = vec![(format!("p{index}").into(), vec![2, 2])];
    FrameworkBucket { index, is_last, gradients: gradients.unwrap(), tensors }
}

/// Gradients after each of five passes, by a hook.
fn hooked(comm: &Communicator, algorithm: AnyAlgorithm) -> Result<Vec<[Vec<f32>; 2]>> {
    let mut hook = CommunicationHook::new(
        comm,
        algorithm,
        HookOptions { learning_rate: Some(0.1), ..HookOptions::default() },
    )?;
    let mut all = Vec::new();
    for pass in 0..5 {
        let mut own = gradients(comm.rank(), pass);
        let [first, second] = &mut own;
        assert!(!hook.ready(lent(first, 0, false))?);
        assert!(hook.ready(lent(second, 1, true))?);
        all.push(own);
    }
    assert_eq!(hook.passes(), 5);
    Ok(all)
}

/// Gradients after each of five passes, by the engine.
fn trained(comm: &Communicator, algorithm: AnyAlgorithm) -> Result<Vec<[Vec<f32>; 2]>> {
    let shaped = |index| Parameter { shape: vec![2, 2], ..parameter(&format!("p{index}"), DType::F32, 4) };
    let options = EngineOptions { queue: Queue::host(), ..options(16, 16) };
    let mut engine = DataParallel::new(comm, vec![shaped(1), shaped(0)], algorithm, options)?;
    engine.set_learning_rate(0.1);
    let mut all = Vec::new();
    for step in 0..5 {
        let [first, second] = gradients(comm.rank(), step);
        pass(&mut engine, Mode::Synchronize, &[second, first])?;
        all.push([gradient(&engine, 1), gradient(&engine, 0)]);
        engine.stepped()?;
    }
    Ok(all)
}

#[test]
fn a_framework_s_buckets_get_what_the_engine_s_get() {
    for algorithm in
        [GradientAllReduce.into(), ByteGrad::default().into(), CompressedAllReduce::top_k().into()]
    {
        let algorithm: AnyAlgorithm = algorithm;
        spawn(TransportKind::Shm, 3, |comm| {
            assert_eq!(hooked(&comm, algorithm.clone())?, trained(&comm, algorithm.clone())?);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn buckets_that_are_cut_anew_between_passes_are_taken() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut hook = CommunicationHook::new(&comm, GradientAllReduce, HookOptions::default())?;
        for lens in [vec![8], vec![4, 4], vec![4, 4], vec![4, 4], vec![2, 2, 4], vec![2, 2, 4]] {
            let mut own: Vec<Vec<f32>> = lens.iter().map(|len| vec![comm.rank() as f32; *len]).collect();
            for (index, values) in own.iter_mut().enumerate() {
                let len = values.len();
                let shaped = |bucket| FrameworkBucket { tensors: vec![("p".into(), vec![len])], ..bucket };
                hook.ready(shaped(lent(values, index, index + 1 == lens.len())))?;
            }
            assert!(own.concat().iter().all(|value| *value == 0.5), "{lens:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_cannot_be_is_refused_on_all_ranks() {
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let made = CommunicationHook::new(&comm, LocalSgd::default(), HookOptions::default());
        Ok(made.err().unwrap().to_string())
    });
    assert!(
        errors.unwrap().iter().all(|error| error.contains("local-sgd") && error.contains("DataParallel"))
    );
    let told = spawn(TransportKind::Thread, 2, |comm| {
        let mut hook = CommunicationHook::new(&comm, GradientAllReduce, HookOptions::default())?;
        // Both have their hook before rank 1 makes its mistake, which may already fail rank 0 here.
        let met = comm.blocking().barrier();
        // Rank 1 leaves a bucket out, so that rank 0 waits for a message that never arrives.
        let bucket = bucket(comm.rank(), true, &[0.0; 4])?;
        let first = met.and_then(|()| hook.ready(bucket));
        Ok(first.unwrap_err().to_string())
    });
    let told = told.unwrap();
    assert!(told[1].contains("bucket 1 arrived where bucket 0 was next"), "{told:?}");
    assert!(told[0].contains("bucket 1 came") || told[0].contains("rank 1"), "{told:?}");
}

#[test]
fn a_hook_that_lacks_the_learning_rate_is_refused_when_it_is_made() {
    spawn(TransportKind::Thread, 2, |comm| {
        let made = |learning_rate| {
            let options = HookOptions { learning_rate, ..HookOptions::default() };
            CommunicationHook::new(&comm, crate::registry::named("powersgd")?, options).map(drop)
        };
        let text = made(None).unwrap_err().to_string();
        assert!(text.contains("powersgd") && text.contains("`learning_rate`"), "{text}");
        made(Some(0.1))
    })
    .unwrap();
}

/// Gradients after passes `from` to `to`, by a hook that continues from a record if there is one, and the record after them.
fn hooked_from(
    comm: &Communicator,
    algorithm: &AnyAlgorithm,
    passes: std::ops::Range<usize>,
    record: Option<Record>,
) -> Result<(Vec<[Vec<f32>; 2]>, Record)> {
    let options = HookOptions { learning_rate: Some(0.1), ..HookOptions::default() };
    let mut hook = CommunicationHook::new(comm, algorithm.clone(), options)?;
    record.map_or(Ok(()), |record| hook.load(record))?;
    let mut all = Vec::new();
    for pass in passes {
        let mut own = gradients(comm.rank(), pass);
        let [first, second] = &mut own;
        hook.ready(lent(first, 0, false))?;
        hook.ready(lent(second, 1, true))?;
        all.push(own);
    }
    Ok((all, hook.save()?))
}

#[test]
fn a_hook_continues_from_its_saved_state_bit_for_bit() {
    for name in ["topk-ef(fraction=25%)", "powersgd(rank=1,start=1)", "qadam(warmup=2)", "loco"] {
        let algorithm = crate::registry::named(name).unwrap();
        spawn(TransportKind::Thread, 3, |comm| {
            let (undisturbed, end) = hooked_from(&comm, &algorithm, 0..7, None)?;
            let (first, record) = hooked_from(&comm, &algorithm, 0..4, None)?;
            let (second, found) = hooked_from(&comm, &algorithm, 4..7, Some(record))?;
            assert_eq!([first, second].concat(), undisturbed, "{name}");
            assert_eq!(found.checksum()?, end.checksum()?, "{name}");
            // Without its state, it continues otherwise.
            assert_ne!(hooked_from(&comm, &algorithm, 4..7, None)?.0, undisturbed[4..], "{name}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_state_that_does_not_fit_a_hook_is_refused() {
    let algorithm = crate::registry::named("topk-ef(fraction=25%)").unwrap();
    let told = spawn(TransportKind::Thread, 2, |comm| {
        let record = |rank: usize| -> Result<Record> {
            let mut record = hooked_from(&comm, &algorithm, 0..3, None)?.1;
            record.note("rank", rank);
            Ok(record)
        };
        let mut told = Vec::new();
        told.push(hooked_from(&comm, &algorithm, 3..4, Some(record(5)?)).err().unwrap().to_string());
        let mut other = record(comm.rank())?;
        other.note("buckets", "f32 [[9]]");
        told.push(hooked_from(&comm, &algorithm, 3..6, Some(other)).err().unwrap().to_string());
        Ok(told)
    });
    for told in told.unwrap() {
        assert!(told[0].contains("is of rank 5, not "), "{told:?}");
        assert!(told[1].contains("has 1 buckets that differ from the 2 of this model"), "{told:?}");
    }
}

#[test]
fn until_its_buckets_come_a_loaded_state_stays_as_it_is() {
    let algorithm = crate::registry::named("topk-ef(fraction=25%)").unwrap();
    spawn(TransportKind::Thread, 2, |comm| {
        let (_, record) = hooked_from(&comm, &algorithm, 0..4, None)?;
        let copy = record.copied()?;
        let (undisturbed, _) = hooked_from(&comm, &algorithm, 4..7, Some(record))?;
        let options = HookOptions { learning_rate: Some(0.1), ..HookOptions::default() };
        let mut hook = CommunicationHook::new(&comm, algorithm.clone(), options)?;
        hook.load(copy)?;
        let mut whole = [1.0 + comm.rank() as f32; 8];
        hook.ready(FrameworkBucket { tensors: vec![("p".into(), vec![8])], ..lent(&mut whole, 0, true) })?;
        assert_eq!(whole, [1.5; 8], "in full precision");
        for (pass, wanted) in (4..7).zip(undisturbed) {
            let mut own = gradients(comm.rank(), pass);
            let [first, second] = &mut own;
            hook.ready(lent(first, 0, false))?;
            hook.ready(lent(second, 1, true))?;
            assert_eq!(own, wanted, "{pass}");
        }
        Ok(())
    })
    .unwrap();
}
