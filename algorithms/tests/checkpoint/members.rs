//! Trainings whose ranks die and arrive without a restart: each survivor has its last steps in memory.

use super::resize::{SAVED, algorithms, steps, trainer};
use super::*;
use hexagram_algorithms::checkpoint::Snapshots;
use hexagram_algorithms::registry;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

/// Ranks of the next generation: their memory, or none if they are new.
type Members = Vec<Option<Snapshots>>;

/// The parameters of a rank.
type Model = Vec<Vec<f32>>;

/// Trains as one generation: loads, and makes `count` steps, the last of which only rank 0 keeps if the others did not
/// finish it. Returns the parameters after loading and at the end, the step of the load, and the members.
fn generation(
    members: Members,
    algorithm: &AnyAlgorithm,
    (count, is_last_kept): (usize, bool),
) -> (Vec<[Model; 2]>, Vec<u64>, Members) {
    let members: Vec<Mutex<Option<Snapshots>>> = members.into_iter().map(Mutex::new).collect();
    let run = |comm: Communicator| {
        let mut snapshots = members[comm.rank()].lock().unwrap().take().unwrap_or_default();
        let mut trainer = trainer(&comm, algorithm)?;
        let own = snapshots.load(trainer.engine())?;
        let step = trainer.engine().steps();
        assert_eq!(own.map_or(Ok(0), |own| own.noted::<u64>("step"))?, step);
        let loaded = trainer.parameters()?;
        for left in (0..count).rev() {
            steps(&mut trainer, &comm, 1)?;
            if left > 0 || is_last_kept || comm.rank() == 0 {
                let step = trainer.engine().steps();
                snapshots.keep(trainer.engine(), || {
                    let mut own = Record::default();
                    own.note("step", step);
                    own
                })?;
            }
        }
        trainer.engine().settle()?;
        *members[comm.rank()].lock().unwrap() = Some(snapshots);
        Ok((step, [loaded, trainer.parameters()?]))
    };
    let ran = spawn(TransportKind::Thread, members.len(), run).unwrap();
    let (loaded, parameters) = ran.into_iter().unzip();
    (parameters, loaded, members.into_iter().map(|member| member.into_inner().unwrap()).collect())
}

fn new(ranks: usize) -> Members {
    (0..ranks).map(|_| None).collect()
}

#[test]
fn survivors_and_new_ranks_continue_from_the_last_step_that_all_survivors_have() {
    for algorithm in algorithms() {
        let name = algorithm.name();
        if !algorithm.keeps_replicas_identical() || algorithm.written().settle {
            continue;
        }
        let (_, loaded, mut members) = generation(new(SAVED), &algorithm, (7, false));
        assert_eq!(loaded, [0; SAVED], "{name}");
        // Rank 1 dies in step 7, which rank 0 has finished; two new ranks arrive.
        members.remove(1);
        members.extend(new(2));
        let (parameters, loaded, mut members) = generation(members, &algorithm, (5, true));
        assert_eq!(loaded, [6; 5], "{name}");
        assert!(parameters.iter().flatten().flatten().flatten().all(|x| x.is_finite()), "{name}");
        for [loaded, _] in &parameters {
            assert_eq!(*loaded, parameters[0][0], "{name}: all begin with one replica, or with the mean");
        }
        // All but two die, rank 0 too.
        members.drain(..3);
        let (parameters, loaded, _) = generation(members, &algorithm, (5, true));
        assert_eq!(loaded, [11; 2], "{name}");
        assert!(parameters.iter().flatten().flatten().flatten().all(|x| x.is_finite()), "{name}");
    }
}

#[test]
fn ranks_that_may_be_apart_continue_from_the_step_in_which_they_last_met() {
    for algorithm in algorithms().into_iter().chain(["ad-psgd", "streaming-diloco(period=4)"].map(named)) {
        let name = algorithm.name();
        if algorithm.keeps_replicas_identical() && !algorithm.written().settle {
            continue;
        }
        let (_, _, mut members) = generation(new(SAVED), &algorithm, (40, true));
        members.remove(0);
        members.extend(new(1));
        let (parameters, loaded, _) = generation(members, &algorithm, (5, true));
        assert_eq!(loaded, [32; SAVED], "{name}");
        assert!(parameters.iter().flatten().flatten().flatten().all(|x| x.is_finite()), "{name}");
    }
}

fn named(name: &str) -> AnyAlgorithm {
    registry::named(name).unwrap()
}

/// The parameters after 6 steps of [`SAVED`] ranks and 5 of `ranks` others, with the change planned: by a checkpoint.
fn planned(algorithm: &AnyAlgorithm, ranks: usize) -> Vec<Model> {
    let scratch = Scratch::new();
    let checkpoints = Checkpoints { any_ranks: true, ..Checkpoints::new(scratch.path()) };
    for (ranks, count) in [(SAVED, 6), (ranks, 5)] {
        let run = |comm: Communicator| {
            let mut trainer = trainer(&comm, algorithm)?;
            checkpoints.load(trainer.engine())?;
            steps(&mut trainer, &comm, count)?;
            checkpoints.save(trainer.engine(), Record::default())?;
            trainer.parameters()
        };
        let parameters = spawn(TransportKind::Thread, ranks, run).unwrap();
        if count == 5 {
            return parameters;
        }
    }
    Vec::new()
}

#[test]
fn a_change_of_members_equals_a_planned_one_bit_for_bit() {
    for name in ["gradient-allreduce", "bytegrad"] {
        let algorithm = registry::named(name).unwrap();
        for (died, arrived) in [(1, 0), (2, 0), (0, 2), (1, 1), (3, 4)] {
            let (_, _, mut members) = generation(new(SAVED), &algorithm, (7, false));
            members.drain(..died);
            members.extend(new(arrived));
            // If rank 0 died, the others have not kept step 7.
            let size = members.len();
            let (parameters, loaded, _) = generation(members, &algorithm, (5, true));
            assert_eq!(loaded, vec![6; size], "{name} {died} {arrived}");
            let ends: Vec<_> = parameters.into_iter().map(|[_, end]| end).collect();
            assert_eq!(ends, planned(&algorithm, size), "{name} {died} {arrived}");
        }
    }
}

#[test]
fn a_new_member_saves_in_the_directories_of_the_others_whatever_their_names_are() {
    let scratch = Scratch::new();
    let names = [&b"a\xff"[..], b"a\xef\xbf\xbd", b"two\nlines", "née".as_bytes()];
    let at = |name: &[u8]| Checkpoints::new(scratch.path().join(OsStr::from_bytes(name)));
    for name in names {
        let memory = Mutex::new(Snapshots::new());
        let first = |comm: Communicator| {
            let mut trainer = super::trainer(&comm)?;
            super::steps(&mut trainer, 1)?;
            at(name).save(trainer.engine(), Record::default())?;
            memory.lock().unwrap().keep(trainer.engine(), Record::default)
        };
        spawn(TransportKind::Thread, 1, first).unwrap();
        let second = |comm: Communicator| {
            let mut snapshots = match comm.rank() {
                0 => std::mem::take(&mut *memory.lock().unwrap()),
                _ => Snapshots::new(),
            };
            let mut trainer = super::trainer(&comm)?;
            snapshots.load(trainer.engine())?;
            at(name).check(trainer.engine())
        };
        spawn(TransportKind::Thread, 2, second).unwrap();
    }
}

#[test]
fn the_same_members_lose_nothing() {
    for name in ["dgc", "local-sgd", "ef21", "gradient-tracking", "sgp", "compressed-allreduce"] {
        let algorithm = registry::named(name).unwrap();
        let (undisturbed, _, _) = generation(new(3), &algorithm, (21, true));
        let (_, _, members) = generation(new(3), &algorithm, (16, true));
        // A second change comes before the first step.
        let (_, loaded, members) = generation(members, &algorithm, (0, true));
        assert_eq!(loaded, [16; 3]);
        let (parameters, loaded, _) = generation(members, &algorithm, (5, true));
        assert_eq!(loaded, [16; 3]);
        for (found, [_, wanted]) in parameters.iter().zip(&undisturbed) {
            assert_eq!(found[1], *wanted, "{name}");
        }
    }
}
