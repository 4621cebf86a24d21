//! The bytes that every algorithm sends, at every size from one element on: the counted bytes are those in its header
//! and in docs/algorithms.md, with the same formula. And the tests named in the table there exist.

use crate::virtual_ranks::in_virtual_time;
use hexagram_algorithms::logical::asynchronous::{REPLY_BYTES, REQUEST_BYTES};
use hexagram_algorithms::logical::runtime;
use hexagram_algorithms::logical::testing::is_deep;
use hexagram_algorithms::logical::testing::sources;
use hexagram_algorithms::logical::{Communicator, Result};
use hexagram_algorithms::testing::{Setup, Trainer, fitting, payload};
use hexagram_algorithms::{AnyAlgorithm, registry};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Ranks and tensors of a training, which determine its bytes.
struct Model {
    ranks: usize,
    tensors: Vec<Vec<usize>>,
}

impl Model {
    /// Returns d.
    fn len(&self) -> usize {
        self.sizes(|_| true).iter().sum()
    }

    /// Returns S.
    fn bytes(&self) -> usize {
        4 * self.len()
    }

    /// Returns the numbers of elements of the tensors whose shapes satisfy `with`.
    fn sizes(&self, with: impl Fn(&[usize]) -> bool) -> Vec<usize> {
        self.tensors.iter().filter(|shape| with(shape)).map(|shape| shape.iter().product()).collect()
    }

    /// Returns n − 1.
    fn others(&self) -> f64 {
        self.ranks as f64 - 1.0
    }

    /// Returns 2(n−1)/n.
    fn there_and_back(&self) -> f64 {
        2.0 * self.others() / self.ranks as f64
    }

    /// Returns the bytes that a rank sends in an all-reduce of `bytes` bytes.
    fn reduced(&self, bytes: usize) -> f64 {
        let share = if self.ranks * bytes <= 64 * 1024 { self.others() } else { self.there_and_back() };
        share * bytes as f64
    }

    /// Returns the bytes that a rank sends in an all-reduce of d elements, with a `message` per chunk.
    fn scattered(&self, message: impl Fn(usize) -> usize) -> f64 {
        let chunk = |rank| self.len() / self.ranks + usize::from(rank < self.len() % self.ranks);
        self.there_and_back() * (0..self.ranks).map(|rank| message(chunk(rank)) as f64).sum::<f64>()
    }

    /// Returns the number of neighbours in a ring.
    fn ring(&self) -> f64 {
        self.others().min(2.0)
    }

    /// Returns the number of ranks to which a rank sends in a graph with one peer.
    fn one(&self) -> f64 {
        self.others().min(1.0)
    }

    /// Returns the bytes of the largest elements of tensors of these sizes.
    fn largest(&self, sizes: &[usize], fraction: f64) -> f64 {
        let message = |d: &usize| {
            let k = (*d as f64 * fraction).ceil() as usize;
            let l = (d / k).ilog2() as usize;
            4 * k + (k * l + k + ((d - 1) >> l)).div_ceil(8) + 1
        };
        self.others() * sizes.iter().map(message).sum::<usize>() as f64
    }
}

fn signs(elements: usize) -> usize {
    elements.div_ceil(8) + 4 * elements.div_ceil(2048)
}

fn eight_bits(elements: usize) -> usize {
    elements + 8 * elements.div_ceil(2048)
}

/// Bytes of an algorithm.
struct Row {
    /// Spelling of the algorithm.
    text: &'static str,
    /// Number of steps that send `bytes`.
    steps: usize,
    /// Bytes that a rank sends in all steps, on average over ranks.
    bytes: fn(&Model) -> f64,
}

fn rows() -> Vec<Row> {
    let row = |text, steps, bytes| Row { text, steps, bytes };
    vec![
        row("gradient-allreduce", 2, |m| 2.0 * m.reduced(m.bytes())),
        row("local-sgd(period=2)", 4, |m| 2.0 * m.reduced(m.bytes())),
        row("post-local-sgd(start=2, period=2)", 6, |m| 4.0 * m.reduced(m.bytes())),
        row("slowmo(period=2)", 4, |m| 2.0 * m.reduced(m.bytes())),
        row("diloco(period=2)", 4, |m| 2.0 * m.reduced(m.bytes())),
        row("muloco(period=2)", 4, |m| 2.0 * m.reduced(m.bytes())),
        row("sparse-loco(period=2)", 4, |m| {
            let message = |d: usize| {
                let k: usize = (0..d).step_by(4096).map(|start| (d - start).min(4096).div_ceil(64)).sum();
                let l = (d / k).ilog2() as usize;
                16 + k.div_ceil(4) + (k * l + k + ((d - 1) >> l)).div_ceil(8) + 1
            };
            2.0 * m.others() * m.sizes(|_| true).into_iter().map(message).sum::<usize>() as f64
        }),
        row("noloco(period=2)", 4, |m| {
            // With an odd number of ranks, one has no partner in each round.
            let paired = (m.ranks - m.ranks % 2) as f64 / m.ranks as f64;
            2.0 * paired * m.bytes() as f64
        }),
        row("easgd(period=3)", 3, |m| m.reduced(m.bytes())),
        row("easgd(period=3, momentum=0.9)", 3, |m| m.reduced(m.bytes())),
        row("streaming-diloco(period=4)", 8, |m| 2.0 * streamed(m, |part| part.reduced(part.bytes()))),
        row("bytegrad", 2, |m| 2.0 * m.scattered(eight_bits)),
        row("compressed-allreduce", 2, |m| 2.0 * m.scattered(|c| 2 * c)),
        row("loco", 2, |m| 2.0 * m.scattered(|c| c.div_ceil(2) + 4 * c.div_ceil(128))),
        row("qadam(warmup=1)", 3, |m| m.reduced(m.bytes()) + 2.0 * m.scattered(signs)),
        row("qadam-8bit(warmup=1)", 3, |m| m.reduced(m.bytes()) + 2.0 * m.scattered(eight_bits)),
        row("zero-one-adam(freeze=4, variance_doubling=1, local_doubling=2, local_largest=2)", 10, |m| {
            // Steps 1 and 3 update v, 2 and 4 do not, 5 and 6 communicate immediately, 8 and 10 together with the step
            // before.
            2.0 * m.reduced(m.bytes()) + 6.0 * m.scattered(signs)
        }),
        row("signsgd-vote", 2, |m| 2.0 * m.scattered(|c| c.div_ceil(8))),
        row("powersgd(start=0)", 2, |m| 2.0 * factors(m)),
        row("powersgd(start=1)", 3, |m| m.reduced(m.bytes()) + 2.0 * factors(m)),
        row("dion", 2, |m| 2.0 * orthonormal_factors(m)),
        row("topk-ef", 2, |m| 2.0 * m.largest(&m.sizes(|_| true), 0.02)),
        row("ef21", 2, |m| 2.0 * m.largest(&m.sizes(|_| true), 0.05)),
        row("dgc(warm_up=0)", 2, |m| {
            let vectors: usize = m.sizes(|shape| shape.len() < 2).iter().sum();
            2.0 * (m.largest(&m.sizes(|shape| shape.len() > 1), 0.01) + m.others() * 4.0 * vectors as f64)
        }),
        row("dgc(warm_up=0, vectors=true)", 2, |m| 2.0 * m.largest(&m.sizes(|_| true), 0.01)),
        row("demo", 2, |m| 2.0 * m.others() * 6.0 * m.tensors.iter().map(|s| kept(s)).sum::<usize>() as f64),
        row("decentralized", 2, |m| 2.0 * m.one() * m.bytes() as f64),
        row("d-psgd", 2, |m| 2.0 * m.ring() * m.bytes() as f64),
        row("d-psgd(adapt-then-combine=true, interval=2)", 2, |m| m.ring() * m.bytes() as f64),
        row("gradient-tracking", 2, |m| 4.0 * m.one() * m.bytes() as f64),
        row("gossip-pga(period=3)", 3, |m| 2.0 * m.ring() * m.bytes() as f64 + m.reduced(m.bytes())),
        row("exact-diffusion", 2, |m| 2.0 * m.ring() * m.bytes() as f64),
        row("extra", 2, |m| 2.0 * m.ring() * m.bytes() as f64),
        row("qg-dsgdm", 2, |m| 2.0 * m.one() * m.bytes() as f64),
        row("relaysgd", 2, |m| 2.0 * m.there_and_back() * m.bytes() as f64),
        row("sgp", 2, |m| 2.0 * m.one() * (m.bytes() + 8) as f64),
        row("low-precision-decentralized", 2, |m| 2.0 * m.ring() * eight_bits(m.len()) as f64),
        row("choco-sgd", 2, |m| 2.0 * m.ring() * signs(m.len()) as f64),
        row("deepsqueeze", 2, |m| 2.0 * m.one() * eight_bits(m.len()) as f64),
    ]
}

/// Returns the sum over the four fragments of the model, including the agreement on each.
fn streamed(m: &Model, fragment: impl Fn(&Model) -> f64) -> f64 {
    let part = |at: usize| {
        let len = (at + 1) * m.len() / 4 - at * m.len() / 4;
        fragment(&Model { ranks: m.ranks, tensors: vec![vec![len]] }) + m.others()
    };
    (0..4).map(part).sum()
}

/// Returns the bytes of the two all-reduces of factors of rank 2.
fn factors(m: &Model) -> f64 {
    let mut rows = 0;
    let mut rest = 0;
    for shape in &m.tensors {
        let len: usize = shape.iter().product();
        let columns = if shape.len() > 1 { len / shape[0] } else { len };
        if shape.len() > 1 && 4 * (shape[0] + columns) < len {
            rows += 2 * shape[0];
            rest += 2 * columns;
        } else {
            rest += len;
        }
    }
    m.reduced(4 * rows) + m.reduced(4 * rest)
}

/// Returns the bytes of the two all-reduces of factors of a quarter of the full rank.
fn orthonormal_factors(m: &Model) -> f64 {
    let mut left = 0;
    let mut right = 0;
    for shape in &m.tensors {
        let len: usize = shape.iter().product();
        let columns = len / shape[0];
        let rank = shape[0].min(columns).div_ceil(4);
        if shape.len() > 1 && rank * (shape[0] + columns) < len {
            left += rank * shape[0];
            right += rank * columns;
        } else {
            left += len;
        }
    }
    m.reduced(4 * left) + m.reduced(4 * right)
}

/// Returns the number of coefficients kept for a tensor.
fn kept(shape: &[usize]) -> usize {
    let len: usize = shape.iter().product();
    let side = |length: usize| (1..=64).rev().find(|side| length.is_multiple_of(*side)).unwrap();
    let block = if shape.len() > 1 { side(shape[0]) * side(len / shape[0]) } else { side(len) };
    len / block * block.min(32)
}

/// Models with one element or more: vectors, matrices, and one whose all-reduce uses the ring.
fn shapes() -> Vec<Vec<Vec<usize>>> {
    let mut all: Vec<Vec<Vec<usize>>> = [1, 2, 3, 5, 16, 33, 1000, 8200].map(|len| vec![vec![len]]).to_vec();
    all.push(vec![vec![7, 9], vec![7], vec![1, 2], vec![3, 2, 2], vec![1]]);
    all.push(vec![vec![30, 40], vec![40], vec![64, 20], vec![8, 3, 7]]);
    all
}

/// Returns the bytes that this rank sends in some steps, without those at the start. In each step of an asynchronous
/// algorithm, a rank is behind those before it, and there is time for all background work.
fn sent(comm: &Communicator, algorithm: &AnyAlgorithm, tensors: &[Vec<usize>], steps: usize) -> Result<f64> {
    let initial: Vec<Vec<f32>> = tensors.iter().map(|shape| vec![1.0; shape.iter().product()]).collect();
    let setup = Setup::default();
    let setup = Setup { optimizer: fitting(algorithm, Arc::clone(&setup.optimizer)), ..setup };
    let mut trainer = Trainer::with_shapes(comm, algorithm.clone(), setup, &initial, tensors)?;
    let gradient = |step: usize, at: usize| ((at * 7 + comm.rank() * 31 + step * 13) % 101) as f32 - 50.0;
    let apart = if algorithm.trigram().synchronous { Duration::ZERO } else { Duration::from_millis(4) };
    trainer.engine().initial().prepare()?;
    let before = payload(comm)?;
    for step in 0..steps {
        runtime::sleep(apart * comm.rank() as u32);
        trainer.step(|_, x| (0..x.len()).map(|at| gradient(step, at)).collect())?;
        runtime::sleep(apart * (comm.size() - comm.rank()) as u32);
    }
    trainer.engine().settle()?;
    Ok((payload(comm)? - before) as f64)
}

/// Returns the bytes per rank, on average over the ranks, of all algorithms, model by model.
fn means(ranks: usize, algorithms: Vec<(AnyAlgorithm, usize)>) -> Vec<Vec<f64>> {
    let of = move |comm: &Communicator, algorithm: &AnyAlgorithm, steps: usize| {
        shapes().iter().map(|tensors| sent(comm, algorithm, tensors, steps)).collect::<Result<Vec<f64>>>()
    };
    let found = in_virtual_time(ranks, move |comm| {
        algorithms.iter().map(|(algorithm, steps)| of(comm, algorithm, *steps)).collect::<Result<Vec<_>>>()
    });
    let mut sums = found[0].clone();
    let sum = sums.iter_mut().flatten();
    sum.enumerate().for_each(|(at, sum)| {
        let all = found.iter().map(|of_rank| of_rank.iter().flatten().nth(at).unwrap());
        *sum = all.sum::<f64>() / ranks as f64;
    });
    sums
}

#[test]
fn synchronous_algorithms_send_what_their_headers_say_at_every_size() {
    let mut wrong = Vec::new();
    // An odd number and a power of two.
    for ranks in if is_deep() { 1..=5 } else { 2..=3 } {
        let algorithms = rows().iter().map(|row| (registry::named(row.text).unwrap(), row.steps)).collect();
        for (row, found) in rows().iter().zip(means(ranks, algorithms)) {
            for (tensors, found) in shapes().into_iter().zip(found) {
                let model = Model { ranks, tensors };
                let expected = (row.bytes)(&model);
                if (found - expected).abs() > 1e-6 {
                    let of = format!("{}, {ranks} ranks, {:?}", row.text, model.tensors);
                    wrong.push(format!("{of}: {found} and not {expected}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Bytes of an asynchronous algorithm, per step.
struct Beside {
    text: &'static str,
    /// Minimum and maximum bytes that a rank sends in a step.
    bytes: fn(&Model) -> (f64, f64),
}

/// Bytes of a request and its reply.
const ASKED: f64 = (REQUEST_BYTES + REPLY_BYTES) as f64;

/// Returns the bytes of a step of `ssp`, whose shards are pushed and pulled with such messages.
fn pushed_and_pulled(m: &Model, clocks: (f64, f64), message: impl Fn(usize) -> usize) -> (f64, f64) {
    let shards = m.scattered(&message) / 2.0;
    let asked = m.others() * m.len().min(m.ranks) as f64 / m.ranks as f64;
    let all = |clock: f64| shards + (2.0 * asked + clock * m.others()) * ASKED;
    (all(clocks.0), all(clocks.1))
}

/// Returns the bytes of the average of a pair, with two such messages.
fn averaged(m: &Model, message: usize) -> (f64, f64) {
    let all = |asked: f64| m.one() * (2.0 * message as f64 + asked * ASKED);
    (all(1.0), all(2.0))
}

fn beside() -> Vec<Beside> {
    let row = |text, bytes| Beside { text, bytes };
    vec![
        row("ssp(staleness=0)", |m| pushed_and_pulled(m, (1.0, 1.0), |c| 8 * c)),
        row("ssp", |m| pushed_and_pulled(m, (0.0, 1.0), |c| 8 * c)),
        row("compressed-ssp", |m| pushed_and_pulled(m, (0.0, 1.0), |c| eight_bits(c) + 2 * c)),
        row("ad-psgd", |m| averaged(m, m.bytes())),
        row("compressed-ad-psgd", |m| averaged(m, eight_bits(m.len()))),
        row("async-model-average(interval=0.001)", |m| {
            let all = m.reduced(m.bytes()) + m.others();
            (all, all)
        }),
        row("compressed-async-model-average(interval=0.001)", |m| {
            let all = m.scattered(eight_bits) + m.others();
            (all, all)
        }),
    ]
}

#[test]
fn asynchronous_algorithms_send_what_their_headers_say_at_every_size() {
    let mut wrong = Vec::new();
    for ranks in if is_deep() { vec![2, 3, 5] } else { vec![3] } {
        // The messages at the start and the end are included in both counts.
        let of = |steps| beside().iter().map(|row| (registry::named(row.text).unwrap(), steps)).collect();
        let found = means(ranks, of(4)).into_iter().zip(means(ranks, of(2)));
        for (row, (more, fewer)) in beside().iter().zip(found) {
            for ((tensors, more), fewer) in shapes().into_iter().zip(more).zip(fewer) {
                let model = Model { ranks, tensors };
                let found = (more - fewer) / 2.0;
                let (least, most) = (row.bytes)(&model);
                if found < least - 1e-6 || found > most + 1e-6 {
                    let of = format!("{}, {ranks} ranks, {:?}", row.text, model.tensors);
                    wrong.push(format!("{of}: {found} and not {least} to {most}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the cells of a row of the table in docs/algorithms.md about bytes and oracles.
fn documented(name: &str) -> Vec<&'static str> {
    let docs = include_str!("../../../docs/algorithms.md");
    let table = docs.split("## What they send").nth(1).unwrap().split("\n## ").next().unwrap();
    let start = format!("| `{name}` |");
    let row = table.lines().find(|line| line.starts_with(&start));
    let row =
        row.unwrap_or_else(|| panic!("{name} has no row among bytes and oracles in docs/algorithms.md"));
    row.split(" | ").collect()
}

/// Returns the header of the file of an algorithm, below the folder of the crate, as one line.
fn header(folder: &Path, name: &str) -> String {
    let file = match name.strip_prefix("compressed-").filter(|name| *name != "allreduce").unwrap_or(name) {
        "qadam-8bit" => "qadam".to_owned(),
        "gradient-allreduce" => "gradient_all_reduce".to_owned(),
        "demo" | "dion" => format!("{name}/mod"),
        "topk-ef" | "powersgd" => "compressed_allreduce".to_owned(),
        "muloco" => "diloco".to_owned(),
        "post-local-sgd" => "local_sgd".to_owned(),
        name => name.replace('-', "_"),
    };
    let text = std::fs::read_to_string(folder.join(format!("src/{file}.rs")));
    let text = text.unwrap_or_else(|error| panic!("src/{file}.rs: {error}"));
    let header = text.lines().map_while(|line| line.strip_prefix("//!"));
    header.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn headers_and_docs_say_the_same_of_every_algorithm_that_is_counted() {
    let Some(folder) = sources(env!("CARGO_MANIFEST_DIR")) else { return };
    for algorithm in registry::all() {
        let name = algorithm.name();
        let counted: Vec<&str> =
            rows().iter().map(|row| row.text).chain(beside().iter().map(|row| row.text)).collect();
        assert!(
            counted.iter().any(|text| text.split('(').next() == Some(name)),
            "{name}'s bytes are not counted here"
        );
        // The header describes in words the messages that are added for agreement or requests, and the ranks that send
        // them.
        let said = documented(name)[1];
        let formula =
            [", and", ", for", " of every"].iter().fold(said, |said, end| said.split(end).next().unwrap());
        assert!(header(&folder, name).contains(formula), "{name}'s header does not have `{formula}`");
    }
}

#[test]
fn the_oracles_in_the_docs_are_tests() {
    let Some(folder) = sources(env!("CARGO_MANIFEST_DIR")) else { return };
    for algorithm in registry::all() {
        let tests = documented(algorithm.name())[3];
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{} names no test", algorithm.name());
        for test in named {
            let (file, function) = test.split_once("::").unwrap();
            let text = std::fs::read_to_string(folder.join(format!("tests/{file}.rs")));
            let text = text.unwrap_or_else(|error| panic!("tests/{file}.rs: {error}"));
            assert!(text.contains(&format!("#[test]\nfn {function}()")), "there is no test {test}");
        }
    }
}
