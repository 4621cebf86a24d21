//! Every algorithm on a device that works late: parameters, optimizer and states have the bits of the host.

use super::warmed_up::{algorithms, sampled};
use hexagram_algorithms::logical::testing::{Late, is_deep, spawn};
use hexagram_algorithms::logical::{Buffer, Communicator, DType, Queue, Result, TransportKind};
use hexagram_algorithms::testing::fitting;
use hexagram_algorithms::{AnyAlgorithm, DataParallel, EngineOptions, Mode, Order, Parameter, Record, Sgd};
use std::sync::Arc;

const TRANSPORTS: [TransportKind; 3] = [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp];
const SEEDS: [u64; 3] = [0, 1, 77];
const STEPS: usize = 13;
const SHAPES: [&[usize]; 3] = [&[9, 14], &[9], &[40]];

/// Number of ranks with which an algorithm is deterministic: one if the order of arrival matters.
pub(crate) fn ranks(algorithm: &AnyAlgorithm) -> usize {
    if algorithm.trigram().synchronous { 3 } else { 1 }
}

/// Returns true if timing decides when the averages of an algorithm begin, even with one rank, and its state shows it.
pub(crate) fn is_timed(algorithm: &AnyAlgorithm) -> bool {
    algorithm.name() == "compressed-async-model-average"
}

/// Creates a queue of a device, or of the host, for each buffer.
pub(crate) type Place<'a> = &'a (dyn Fn() -> Queue + Sync);

fn buffer(place: Place<'_>, values: impl Iterator<Item = usize>) -> Result<Buffer> {
    let values: Vec<f32> = values.map(|x| (x % 101) as f32 / 50.0 - 1.0).collect();
    Buffer::from_slice_on(&place(), &values)
}

/// Makes steps whose gradients are computed on other queues than those of the engine, and returns the complete state of
/// the engine.
pub(crate) fn train(comm: &Communicator, algorithm: AnyAlgorithm, place: Place<'_>) -> Result<Record> {
    let parameter = |(index, shape): (usize, &&[usize])| Parameter {
        name: format!("p{index}"),
        dtype: DType::F32,
        shape: shape.to_vec(),
    };
    let options = EngineOptions {
        optimizer: Some(fitting(&algorithm, Arc::new(Sgd { momentum: 0.9, ..Sgd::default() }))),
        queue: place(),
        order: Order::Listed,
        first_bucket_bytes: 400,
        bucket_bytes: 400,
        ..EngineOptions::default()
    };
    let parameters = SHAPES.iter().enumerate().map(parameter).collect();
    let mut engine = DataParallel::new(comm, parameters, algorithm, options)?;
    engine.set_learning_rate(0.05);
    let lengths = SHAPES.map(|shape| shape.iter().product::<usize>());
    for (index, len) in lengths.iter().enumerate() {
        engine.set_parameter(index, &buffer(place, (0..*len).map(|at| at * 37))?)?;
    }
    for step in 0..STEPS {
        let gradient = |(index, len): (usize, &usize)| {
            let target = (0..*len).map(|at| at * 7 + comm.rank() * 31 + step * 13 + index);
            let gradient = buffer(place, target)?;
            gradient.write_all()?.add_scaled(1.0, &engine.parameter(index)?)?;
            Ok(gradient)
        };
        let gradients = lengths.iter().enumerate().map(gradient).collect::<Result<Vec<_>>>()?;
        engine.forward()?;
        let hooks = engine.hooks();
        engine.begin(Mode::Synchronize)?;
        for (index, gradient) in gradients.iter().enumerate().rev() {
            hooks.ready(index, gradient)?;
        }
        engine.finish_and_step()?;
    }
    engine.checkpoint().save()
}

/// Name and bytes of a tensor of a record, or of a fact.
pub(crate) type Bits = (String, Vec<u8>);

/// Returns the bytes of every tensor of a record, and the facts, by name.
pub(crate) fn bits(record: &Record) -> Result<Vec<Bits>> {
    let mut all = Vec::new();
    for (name, saved) in record.tensors() {
        let values = saved.values.read_all()?;
        all.push((name.to_owned(), values.bytes_on_host()?.into_owned()));
    }
    all.extend(record.facts().map(|(name, fact)| (name.to_owned(), fact.as_bytes().to_vec())));
    Ok(all)
}

/// Returns the differences between two trainings, of all ranks.
pub(crate) fn difference(expected: &[Vec<Bits>], found: &[Vec<Bits>]) -> String {
    let pairs = expected.iter().flatten().zip(found.iter().flatten());
    let other = pairs.filter(|(x, y)| x != y).map(|((name, _), _)| format!("`{name}` is another"));
    other.into_iter().next().unwrap_or_else(|| "there are more or fewer of them".to_owned())
}

#[test]
fn every_algorithm_has_the_bits_of_the_host() {
    let lates = SEEDS.map(Late::new);
    let mut failed = Vec::new();
    for algorithm in sampled(algorithms()).into_iter().filter(|algorithm| !is_timed(algorithm)) {
        let trained = |transport: TransportKind, place: Place<'_>| {
            let run = |comm: Communicator| bits(&train(&comm, algorithm.clone(), place)?);
            spawn(transport, ranks(&algorithm), run)
        };
        let expected = trained(TransportKind::Thread, &Queue::host).unwrap();
        for (transport, (seed, late)) in TRANSPORTS.into_iter().zip(SEEDS.iter().zip(&lates)) {
            let found = trained(transport, &|| late.queue());
            let why = match found {
                Err(error) => error.to_string(),
                Ok(found) if found == expected => continue,
                Ok(found) => difference(&expected, &found),
            };
            failed.push(format!("{algorithm:?} over {transport} with seed {seed}: {why}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    // Checks that there was work to wait for.
    let least = if is_deep() { 10_000 } else { 1000 };
    assert!(lates.iter().all(|late| late.queue_waits() > least));
}
