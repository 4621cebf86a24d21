//! Checkpoints that a different number of ranks loads.

use super::errors_of;
use hexagram_algorithms::checkpoint::{Checkpoints, Record};
use hexagram_algorithms::logical::decentralized::{Mixing, Schedule};
use hexagram_algorithms::logical::testing::{is_deep, spawn, spawn_hosts};
use hexagram_algorithms::logical::{Communicator, DType, Result, TransportKind};
use hexagram_algorithms::sgp::Sgp;
use hexagram_algorithms::testing::{Scratch, Setup, Trainer, fitting};
use hexagram_algorithms::{AnyAlgorithm, EngineOptions, Sgd, registry};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Ranks that save.
pub(super) const SAVED: usize = 4;

/// Algorithms of the gate: one of each rule of their fields.
const SAMPLE: [&str; 10] = [
    "gradient-allreduce",
    "compressed-allreduce",
    "diloco",
    "dgc",
    "ef21",
    "gradient-tracking",
    "noloco",
    "qadam",
    "slowmo",
    "compressed-ssp",
];

/// Options with which 7 steps reach all fields of an algorithm.
const BEYOND_WARM_UP: [&str; 8] = [
    "qadam(warmup=2)",
    "zero-one-adam(freeze=2)",
    "powersgd(start=1)",
    "sparse-loco(period=2)",
    "diloco(period=3,codec=sign,feedback=error)",
    "compressed-allreduce(codec=sign,feedback=two-level)",
    "compressed-allreduce(codec=min-max8,feedback=difference)",
    "slowmo(base=dgc)",
];

pub(super) fn algorithms() -> Vec<AnyAlgorithm> {
    let mut all = registry::all();
    all.retain(|algorithm| is_deep() || SAMPLE.contains(&algorithm.name()));
    all
}

fn beyond_warm_up() -> [AnyAlgorithm; 8] {
    BEYOND_WARM_UP.map(|name| registry::named(name).unwrap())
}

pub(super) fn trainer(comm: &Communicator, algorithm: &AnyAlgorithm) -> Result<Trainer<f32>> {
    let optimizer = fitting(algorithm, Arc::new(Sgd { momentum: 0.9, ..Sgd::default() }));
    let setup = Setup { learning_rate: 0.05, optimizer, ..Setup::default() };
    Trainer::new(comm, algorithm.clone(), setup, &[vec![1.0; 6], vec![-2.0; 10]])
}

/// Steps towards a minimum of each rank's own.
pub(super) fn steps(trainer: &mut Trainer<f32>, comm: &Communicator, count: usize) -> Result<()> {
    let minimum = 3.0 + comm.rank() as f32;
    (0..count).try_for_each(|_| trainer.step(|_, x| x.iter().map(|x| x - minimum).collect()))
}

/// Trains and saves with [`SAVED`] ranks; returns the parameters of each.
fn save(at: &Path, algorithm: &AnyAlgorithm) -> Vec<Vec<Vec<f32>>> {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        steps(&mut trainer, &comm, 7)?;
        Checkpoints::new(at).save(trainer.engine(), Record::default())?;
        trainer.parameters()
    };
    spawn(TransportKind::Thread, SAVED, run).unwrap()
}

/// The parameters of each of `ranks` ranks after loading, and after some more steps.
fn resume(at: &Path, algorithm: &AnyAlgorithm, ranks: usize) -> Vec<[Vec<Vec<f32>>; 2]> {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        let checkpoints = Checkpoints { any_ranks: true, ..Checkpoints::new(at) };
        checkpoints.load(trainer.engine())?.unwrap();
        assert_eq!(trainer.engine().steps(), 7);
        let loaded = trainer.parameters()?;
        steps(&mut trainer, &comm, 5)?;
        trainer.engine().settle()?;
        Ok([loaded, trainer.parameters()?])
    };
    spawn(TransportKind::Thread, ranks, run).unwrap()
}

#[test]
fn every_algorithm_goes_on_with_more_or_fewer_ranks_from_the_mean_of_all() {
    for algorithm in algorithms().into_iter().chain(beyond_warm_up()) {
        let scratch = Scratch::new();
        let saved = save(scratch.path(), &algorithm);
        let mean = |tensor: usize, at: usize| {
            saved.iter().map(|replica| replica[tensor][at]).sum::<f32>() / SAVED as f32
        };
        for ranks in [1, 3, 6] {
            let name = format!("{} with {ranks} ranks", algorithm.name());
            let resumed = resume(scratch.path(), &algorithm, ranks);
            for [loaded, trained] in &resumed {
                for (tensor, values) in loaded.iter().enumerate() {
                    for (at, x) in values.iter().enumerate() {
                        assert!((x - mean(tensor, at)).abs() < 1e-5, "{name}: {x} {}", mean(tensor, at));
                    }
                }
                assert!(trained.iter().flatten().all(|x| x.is_finite()), "{name}: {trained:?}");
                assert_ne!(loaded, trained, "{name}");
                if algorithm.keeps_replicas_identical() {
                    assert_eq!(loaded, &saved[0], "{name}");
                    assert_eq!(trained, &resumed[0][1], "{name}");
                }
            }
        }
    }
}

/// Fields of an algorithm on one rank, by the name of the fact that lists them; others under the empty name.
type FieldsByRule = BTreeMap<String, BTreeMap<String, Vec<f64>>>;

/// Returns the present fields of the algorithm. A collective call.
fn fields(trainer: &mut Trainer<f32>) -> Result<FieldsByRule> {
    let record = trainer.engine().checkpoint().save()?;
    let rule_of = |name: &str| {
        let is_in = |rule: &&str| {
            record.noted::<String>(rule).is_ok_and(|list| list.lines().any(|listed| listed == name))
        };
        ["shared", "averaged", "chunked"].into_iter().find(is_in).unwrap_or_default()
    };
    let mut found = FieldsByRule::new();
    for (name, saved) in record.tensors() {
        let Some((_, field)) = name.strip_prefix("algorithm/").and_then(|name| name.split_once('/')) else {
            continue;
        };
        let values = match saved.values.dtype() {
            DType::F32 => saved.values.host::<f32>()?.iter().map(|x| f64::from(*x)).collect(),
            DType::F64 => saved.values.host::<f64>()?.to_vec(),
            _ => saved.values.host::<i64>()?.iter().map(|x| *x as f64).collect(),
        };
        found.entry(rule_of(field).to_owned()).or_default().insert(name.to_owned(), values);
    }
    Ok(found)
}

/// Trains and saves with [`SAVED`] ranks; returns the fields of each.
fn save_fields(at: &Path, algorithm: &AnyAlgorithm) -> Vec<FieldsByRule> {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        steps(&mut trainer, &comm, 7)?;
        Checkpoints::new(at).save(trainer.engine(), Record::default())?;
        fields(&mut trainer)
    };
    spawn(TransportKind::Thread, SAVED, run).unwrap()
}

/// Returns the fields of each of `ranks` ranks after loading.
fn load_fields(at: &Path, algorithm: &AnyAlgorithm, ranks: usize) -> Vec<FieldsByRule> {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        Checkpoints { any_ranks: true, ..Checkpoints::new(at) }.load(trainer.engine())?.unwrap();
        fields(&mut trainer)
    };
    spawn(TransportKind::Thread, ranks, run).unwrap()
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (x, y) in found.iter().zip(expected) {
        assert!((x - y).abs() <= 1e-6 * y.abs().max(1.0), "{what}: {found:?}, not {expected:?}");
    }
}

fn mean_over(ranks: &[FieldsByRule], rule: &str, name: &str) -> Vec<f64> {
    let each = ranks.iter().map(|fields| &fields[rule][name]);
    let mut mean = vec![0.0; ranks[0][rule][name].len()];
    each.for_each(|values| mean.iter_mut().zip(values).for_each(|(mean, x)| *mean += x / ranks.len() as f64));
    mean
}

/// Checks one field after loading; returns false if it is one that begins anew.
fn check_field(rule: &str, name: &str, [saved, loaded]: [&[FieldsByRule]; 2], what: &str) -> bool {
    let of = |rank: &FieldsByRule| rank[rule][name].clone();
    match rule {
        "shared" => loaded.iter().for_each(|rank| assert_eq!(of(rank), of(&saved[0]), "{what}")),
        "averaged" => {
            let mean = mean_over(saved, rule, name);
            loaded.iter().for_each(|rank| assert_close(&of(rank), &mean, what));
        }
        "chunked" => {
            let joined = |ranks: &[FieldsByRule]| ranks.iter().flat_map(of).collect::<Vec<_>>();
            assert_eq!(joined(loaded), joined(saved), "{what}");
        }
        _ => return false,
    }
    true
}

#[test]
fn means_and_chunks_of_what_an_algorithm_keeps_stay() {
    let mut kept = 0;
    for algorithm in algorithms().into_iter().chain(beyond_warm_up()) {
        let scratch = Scratch::new();
        let saved = save_fields(scratch.path(), &algorithm);
        for ranks in [1, 3, 6] {
            let loaded = load_fields(scratch.path(), &algorithm, ranks);
            for (rule, fields) in &saved[0] {
                for name in fields.keys() {
                    let what = format!("{name} of {} with {ranks} ranks", algorithm.name());
                    kept += usize::from(check_field(rule, name, [&saved, &loaded], &what));
                }
            }
        }
    }
    assert!(kept > 60, "{kept} fields");
}

/// Every rank sends to the next; rank 0 also to the one after. So weights of push-sum differ.
#[derive(Debug)]
struct Uneven;

impl Schedule for Uneven {
    fn mixing(&self, size: usize, _: u64) -> Result<Mixing> {
        let next = |rank: usize, by: usize| (rank + by) % size;
        let to = |rank: usize| if rank == 0 { vec![next(0, 1), next(0, 2)] } else { vec![next(rank, 1)] };
        Mixing::push(size, |rank| to(rank).into_iter().filter(|to| *to != rank).collect())
    }
}

#[test]
fn the_mean_is_weighted_as_the_algorithm_does() {
    let algorithm = AnyAlgorithm::from(Sgp { schedule: Arc::new(Uneven) });
    let scratch = Scratch::new();
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm, &algorithm)?;
        steps(&mut trainer, &comm, 7)?;
        Checkpoints::new(scratch.path()).save(trainer.engine(), Record::default())?;
        trainer.engine().with_mean(|engine| engine.values::<f32>(0))?.result
    };
    let mean = spawn(TransportKind::Thread, SAVED, run).unwrap().remove(0);
    for [loaded, _] in resume(scratch.path(), &algorithm, 3) {
        for (x, mean) in loaded[0].iter().zip(&mean) {
            assert!((x - mean).abs() < 1e-5, "{x}, not {mean}");
        }
    }
}

/// Trains with equal gradients on all ranks: 7 steps with [`SAVED`] of them, and 5 with each number in `ranks`. Returns
/// the mean replica of each.
fn interrupted<const N: usize>(algorithm: &AnyAlgorithm, ranks: [usize; N]) -> [Vec<f32>; N] {
    let scratch = Scratch::new();
    let checkpoints = Checkpoints { any_ranks: true, ..Checkpoints::new(scratch.path()) };
    let train = |trainer: &mut Trainer<f32>, count: usize| {
        (0..count).try_for_each(|_| trainer.step(|_, x| x.iter().map(|x| x - 3.0).collect()))
    };
    let save = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        train(&mut trainer, 7)?;
        checkpoints.save(trainer.engine(), Record::default())
    };
    spawn(TransportKind::Thread, SAVED, save).unwrap();
    let resume = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        checkpoints.load(trainer.engine())?.unwrap();
        train(&mut trainer, 5)?;
        trainer.engine().with_mean(|engine| engine.values::<f32>(1))?.result
    };
    ranks.map(|ranks| spawn(TransportKind::Thread, ranks, resume).unwrap().remove(0))
}

/// Algorithms whose steps depend on the number of ranks also with equal data: by the strength of the springs, the chunks
/// that share a scale of 4 bits, and relays that begin anew.
const DEPENDENT: [&str; 3] = ["easgd", "loco", "relaysgd"];

#[test]
fn with_equal_data_a_change_of_ranks_changes_nothing() {
    for algorithm in algorithms() {
        if !algorithm.trigram().synchronous || DEPENDENT.contains(&algorithm.name()) {
            continue;
        }
        let [undisturbed, fewer, more] = interrupted(&algorithm, [SAVED, 3, 6]);
        for found in [fewer, more] {
            let far = found.iter().zip(&undisturbed).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(far < 1e-5, "{}: {found:?}, not {undisturbed:?}", algorithm.name());
        }
    }
}

#[test]
fn among_hosts_encodings_begin_anew_and_training_goes_on() {
    for name in ["compressed-allreduce(codec=sign,feedback=two-level)", "ef21", "qadam(warmup=2)", "dgc"] {
        let algorithm = registry::named(name).unwrap();
        let scratch = Scratch::new();
        let run = |comm: &Communicator, count: usize| {
            let engine = EngineOptions { hierarchical: true, ..EngineOptions::default() };
            let setup = Setup { learning_rate: 0.05, engine, ..Setup::default() };
            let mut trainer = Trainer::new(comm, algorithm.clone(), setup, &[vec![1.0; 6], vec![-2.0; 10]])?;
            let checkpoints = Checkpoints { any_ranks: true, ..Checkpoints::new(scratch.path()) };
            checkpoints.load(trainer.engine())?;
            steps(&mut trainer, comm, count)?;
            checkpoints.save(trainer.engine(), Record::default())?;
            trainer.parameters()
        };
        for hosts in [vec![0, 0, 1, 2], vec![0, 1], vec![0, 0, 1, 1, 1]] {
            let replicas = spawn_hosts(&hosts, |comm| run(&comm, 5))
                .unwrap_or_else(|error| panic!("{name} on {hosts:?}: {error}"));
            assert!(
                replicas.iter().all(|replica| *replica == replicas[0]),
                "{name} on {hosts:?}: {replicas:?}"
            );
        }
    }
}

#[test]
fn without_the_files_of_all_ranks_identical_replicas_go_on_and_the_rest_begins_anew() {
    let algorithm = registry::named("qadam(warmup=2)").unwrap();
    let scratch = Scratch::new();
    let saved = save(scratch.path(), &algorithm);
    std::fs::remove_file(scratch.path().join("step-000007/rank-00003-of-00004.safetensors")).unwrap();
    for [loaded, _] in resume(scratch.path(), &algorithm, 2) {
        assert_eq!(loaded, saved[0]);
    }
}

#[test]
fn without_permission_another_number_of_ranks_is_an_error() {
    let scratch = Scratch::new();
    let algorithm = registry::named("gradient-allreduce").unwrap();
    save(scratch.path(), &algorithm);
    let errors = errors_of(2, |comm| {
        Checkpoints::new(scratch.path()).load(trainer(comm, &algorithm)?.engine()).map(drop)
    });
    assert!(
        errors.iter().all(|error| error.contains("is of 4 ranks, not 2; start 4 ranks, or permit any")),
        "{errors:?}"
    );
}

#[test]
fn without_the_files_of_all_ranks_other_replicas_begin_with_the_mean_of_those_left() {
    let scratch = Scratch::new();
    let algorithm = registry::named("local-sgd").unwrap();
    let saved = save(scratch.path(), &algorithm);
    std::fs::remove_file(scratch.path().join("step-000007/rank-00001-of-00004.safetensors")).unwrap();
    for [loaded, _] in [2, 4, 5].into_iter().flat_map(|ranks| resume(scratch.path(), &algorithm, ranks)) {
        for (at, x) in loaded[1].iter().enumerate() {
            let mean = (saved[0][1][at] + saved[2][1][at] + saved[3][1][at]) / 3.0;
            assert!((x - mean).abs() < 1e-5, "{x}, not {mean}");
        }
    }
}

#[test]
fn without_the_files_of_all_ranks_training_reaches_the_optimum_of_those_left() {
    let mut all = algorithms();
    all.retain(|algorithm| algorithm.trigram().synchronous);
    all.push(registry::named("compressed-allreduce(codec=min-max8,feedback=difference)").unwrap());
    for algorithm in all {
        let scratch = Scratch::new();
        let far = |folder: &std::path::Path| {
            let run = |comm: Communicator| {
                let mut trainer = trainer(&comm, &algorithm)?;
                Checkpoints { any_ranks: true, ..Checkpoints::new(folder) }.load(trainer.engine())?;
                // Small enough for error feedback and momentum together.
                trainer.engine().set_learning_rate(0.004);
                steps(&mut trainer, &comm, 500)?;
                trainer.parameters()
            };
            let replicas = spawn(TransportKind::Thread, 3, run).unwrap();
            let sum: f32 = replicas.iter().map(|replica| replica[0][0]).sum();
            (sum / 3.0 - 4.0).abs()
        };
        let undisturbed = far(scratch.path());
        save(scratch.path(), &algorithm);
        std::fs::remove_file(scratch.path().join("step-000007/rank-00003-of-00004.safetensors")).unwrap();
        let after = far(scratch.path());
        let name = algorithm.name();
        assert!(after <= 0.02 + 2.0 * undisturbed, "{name}: {after} from it, {undisturbed} if undisturbed");
    }
}
