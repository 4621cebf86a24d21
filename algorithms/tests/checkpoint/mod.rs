//! Checkpoints: the restored state, the choice of the checkpoint, hosts with different files, and errors that reach
//! every rank.

mod background;
mod directories;
mod hosts;
mod killed;
mod members;
mod resize;

use hexagram_algorithms::checkpoint::{Checkpoints, Record};
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, DType, Result, TransportKind};
use hexagram_algorithms::testing::{Scratch, Setup, Trainer};
use hexagram_algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, GradientAllReduce, LossScale, Mode, Parameter, Sgd,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn algorithm() -> AnyAlgorithm {
    GradientAllReduce.into()
}

/// A model of two tensors.
fn trainer(comm: &Communicator) -> Result<Trainer<f32>> {
    Trainer::new(comm, algorithm(), Setup::default(), &[vec![1.0; 5], vec![2.0; 3]])
}

fn steps(trainer: &mut Trainer<f32>, count: usize) -> Result<()> {
    (0..count).try_for_each(|_| trainer.step(|_, x| x.iter().map(|x| x - 7.0).collect()))
}

/// What a program adds to a checkpoint: a number that identifies it, and bytes of the rank.
fn record(comm: &Communicator, number: u64) -> Record {
    let mut own = Record::default();
    own.note("number", number);
    own.put("bytes", &[comm.rank() as u8; 3]).unwrap();
    own
}

/// Saves a checkpoint at the present step.
fn save(at: &Path, trainer: &mut Trainer<f32>, number: u64) -> Result<PathBuf> {
    let own = record(trainer.engine().communicator(), number);
    Checkpoints::new(at).save(trainer.engine(), own)
}

/// The number in the newest checkpoint, and its number of steps.
fn load(at: &Path, comm: &Communicator) -> Result<Option<(u64, u64)>> {
    let mut trainer = trainer(comm)?;
    let own = Checkpoints::new(at).load(trainer.engine())?;
    let Some(own) = own else { return Ok(None) };
    assert_eq!(own.get::<u8>("bytes")?, [comm.rank() as u8; 3]);
    Ok(Some((own.noted("number")?, trainer.engine().steps())))
}

/// The errors of all `ranks` ranks when loading; all of them must fail.
fn errors_of(ranks: usize, load: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<String> {
    let errors = spawn(TransportKind::Thread, ranks, |comm| Ok(load(&comm).unwrap_err().to_string()));
    errors.unwrap()
}

fn two(body: impl Fn(Communicator) -> Result<()> + Sync) {
    spawn(TransportKind::Thread, 2, body).unwrap();
}

/// Checkpoints of steps 1 and 2 of two ranks that share a directory.
fn two_steps(at: &Path) {
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        for step in 1..=2 {
            steps(&mut trainer, 1)?;
            save(at, &mut trainer, step)?;
        }
        Ok(())
    });
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The checkpoints that can be loaded; another rank may still be deleting the others.
fn complete(at: &Path) -> Vec<String> {
    names(at).into_iter().filter(|name| !name.starts_with('.')).collect()
}

#[test]
fn without_a_checkpoint_nothing_is_loaded() {
    let scratch = Scratch::new();
    two(|comm| {
        assert_eq!(load(scratch.path(), &comm)?, None);
        Ok(())
    });
}

#[test]
fn the_newest_is_loaded_the_last_two_are_kept_and_a_step_may_be_saved_again() {
    let scratch = Scratch::new();
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        for step in 1..=4 {
            steps(&mut trainer, 1)?;
            let at = save(scratch.path(), &mut trainer, step)?;
            assert!(at.ends_with(format!("step-{step:06}")));
        }
        let before = trainer.parameters()?;
        assert_eq!(complete(scratch.path()), ["step-000003", "step-000004"]);
        assert_eq!(load(scratch.path(), &comm)?, Some((4, 4)));
        save(scratch.path(), &mut trainer, 5)?;
        assert_eq!(complete(scratch.path()), ["step-000004", "step-000004.1"]);
        assert_eq!(load(scratch.path(), &comm)?, Some((5, 4)));
        // An engine that has continued may load an earlier state.
        steps(&mut trainer, 3)?;
        Checkpoints::new(scratch.path()).load(trainer.engine())?;
        assert_eq!((trainer.engine().steps(), trainer.parameters()?), (4, before));
        Ok(())
    });
}

#[test]
fn one_rank_is_enough() {
    let scratch = Scratch::new();
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm)?;
        steps(&mut trainer, 2)?;
        save(scratch.path(), &mut trainer, 1)?;
        load(scratch.path(), &comm)
    };
    assert_eq!(spawn(TransportKind::Thread, 1, run).unwrap(), [Some((1, 2))]);
}

#[test]
fn parameters_of_the_same_name_are_refused() {
    two(|comm| {
        let parameter = Parameter { name: "p".to_owned(), dtype: DType::F32, shape: vec![1] };
        let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
        let parameters = vec![parameter.clone(), parameter];
        let mut engine = DataParallel::new(&comm, parameters, algorithm(), options)?;
        let error = engine.checkpoint().save().err().unwrap().to_string();
        assert!(error.contains("two parameters are called `p`"), "{error}");
        Ok(())
    });
}

#[test]
fn a_checkpoint_of_a_model_that_has_not_begun_is_loaded_too() {
    let scratch = Scratch::new();
    two(|comm| {
        save(scratch.path(), &mut trainer(&comm)?, 9)?;
        assert_eq!(load(scratch.path(), &comm)?, Some((9, 0)));
        Ok(())
    });
}

#[test]
fn hosts_that_share_no_files_agree_on_the_newest_that_all_have() {
    let scratch = Scratch::new();
    let host = |rank: usize| scratch.path().join(format!("host{rank}"));
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        for step in 1..=2 {
            steps(&mut trainer, 1)?;
            save(&host(comm.rank()), &mut trainer, step)?;
        }
        Ok(())
    });
    let loaded = || spawn(TransportKind::Thread, 2, |comm| load(&host(comm.rank()), &comm)).unwrap();
    // The job was killed after rank 0 had renamed its files, but before rank 1 had.
    let renamed = |from: &str, to: &str| fs::rename(host(1).join(from), host(1).join(to)).unwrap();
    renamed("step-000002", ".step-000002.partial");
    assert_eq!(loaded(), [Some((2, 2)); 2]);
    assert_eq!(names(&host(1)), ["step-000001", "step-000002"]);
    // The disk of one host was lost.
    fs::remove_dir_all(host(1).join("step-000002")).unwrap();
    assert_eq!(loaded(), [Some((1, 1)); 2]);
    fs::remove_dir_all(host(1)).unwrap();
    for error in errors_of(2, |comm| load(&host(comm.rank()), comm).map(drop)) {
        assert!(error.contains("step-000002 lacks the files of the ranks [1]"), "{error}");
    }
}

#[test]
fn files_that_nobody_finished_are_ignored_and_swept() {
    let scratch = Scratch::new();
    two_steps(scratch.path());
    let partial = scratch.path().join(".step-000003.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("rank-00000-of-00002.safetensors"), b"half").unwrap();
    fs::create_dir(scratch.path().join(".step-000000.gone")).unwrap();
    two(|comm| {
        assert_eq!(load(scratch.path(), &comm)?, Some((2, 2)));
        let mut trainer = trainer(&comm)?;
        Checkpoints::new(scratch.path()).load(trainer.engine())?;
        steps(&mut trainer, 1)?;
        save(scratch.path(), &mut trainer, 3)?;
        assert_eq!(load(scratch.path(), &comm)?, Some((3, 3)));
        Ok(())
    });
    assert_eq!(names(scratch.path()), ["step-000002", "step-000003"]);
}

#[test]
fn a_damaged_file_is_named_on_every_rank_and_no_older_one_is_taken() {
    let scratch = Scratch::new();
    two_steps(scratch.path());
    let file = scratch.path().join("step-000002/rank-00001-of-00002.safetensors");
    let whole = fs::read(&file).unwrap();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    for bytes in [&whole[..whole.len() / 2], &[7; 100], &[], &changed] {
        fs::write(&file, bytes).unwrap();
        for error in errors_of(2, |comm| load(scratch.path(), comm).map(drop)) {
            assert!(error.contains("step-000002/rank-00001-of-00002.safetensors is damaged"), "{error}");
        }
    }
    fs::remove_file(&file).unwrap();
    for error in errors_of(2, |comm| load(scratch.path(), comm).map(drop)) {
        assert!(error.contains("lacks rank-00001-of-00002.safetensors; restore the file"), "{error}");
    }
    fs::remove_file(file.with_file_name("rank-00000-of-00002.safetensors")).unwrap();
    for error in errors_of(2, |comm| load(scratch.path(), comm).map(drop)) {
        assert!(error.contains("remove the directory on all hosts"), "{error}");
    }
}

#[test]
fn files_of_different_saves_are_refused_on_every_rank() {
    let one = Scratch::new();
    let other = Scratch::new();
    two_steps(one.path());
    two_steps(other.path());
    let file =
        |at: &Scratch, step: u64| at.path().join(format!("step-{step:06}/rank-00001-of-00002.safetensors"));
    // The file of rank 1 from the step before, and from the same step of another run.
    for (from, saved) in [(file(&one, 1), "step-000001 ("), (file(&other, 2), "step-000002 (")] {
        fs::copy(from, file(&one, 2)).unwrap();
        for error in errors_of(2, |comm| load(one.path(), comm).map(drop)) {
            let named = format!("not of one save: {} is of {saved}", file(&one, 2).display());
            assert!(error.contains(&named), "{error}");
        }
    }
}

#[test]
fn a_checkpoint_of_another_training_says_in_what_it_differs() {
    let scratch = Scratch::new();
    two_steps(scratch.path());
    let at = Checkpoints::new(scratch.path());
    for error in errors_of(3, |comm| load(scratch.path(), comm).map(drop)) {
        assert!(error.contains("is of 2 ranks, not 3"), "{error}");
    }
    let other = |algorithm: fn() -> AnyAlgorithm, initial: &'static [Vec<f32>], setup: fn() -> Setup| {
        errors_of(2, |comm| at.load(Trainer::new(comm, algorithm(), setup(), initial)?.engine()).map(drop))
    };
    let same: &[Vec<f32>] = Box::leak(Box::new([vec![1.0; 5], vec![2.0; 3]]));
    let longer: &[Vec<f32>] = Box::leak(Box::new([vec![1.0; 5], vec![2.0; 4]]));
    let momentum =
        || Setup { optimizer: Arc::new(Sgd { momentum: 0.9, ..Default::default() }), ..Setup::default() };
    for error in other(|| LocalSgd::default().into(), same, Setup::default) {
        assert!(error.contains("is of algorithm gradient-allreduce, not local-sgd"), "{error}");
    }
    for error in other(algorithm, longer, Setup::default) {
        assert!(error.contains("`p1` f32 [3], where this one has `p1` f32 [4]"), "{error}");
    }
    for error in other(algorithm, &same[..1], Setup::default) {
        assert!(error.contains("of a model of 2 parameters, and this one has 1"), "{error}");
    }
    for error in other(algorithm, same, momentum) {
        assert!(
            error.contains("is of a training by Sgd { momentum: 0.0")
                && error.contains("not Sgd { momentum: 0.9"),
            "{error}"
        );
    }
    for error in other(algorithm, same, scaled) {
        assert!(error.contains("is of an unscaled loss, and this engine of a scaled loss"), "{error}");
    }
}

/// With loss scaling.
fn scaled() -> Setup {
    let mut setup = Setup::default();
    setup.engine.loss_scale = Some(LossScale::default());
    setup
}

#[test]
fn an_engine_that_a_checkpoint_does_not_fit_is_as_it_was() {
    let scratch = Scratch::new();
    two_steps(scratch.path());
    two(|comm| {
        let mut trainer = Trainer::new(&comm, algorithm(), scaled(), &[vec![9.0f32; 5], vec![9.0; 3]])?;
        let refused = Checkpoints::new(scratch.path()).load(trainer.engine());
        assert!(refused.is_err());
        assert_eq!((trainer.engine().steps(), trainer.parameters()?), (0, vec![vec![9.0; 5], vec![9.0; 3]]));
        Ok(())
    });
}

#[test]
fn a_directory_that_one_rank_cannot_write_is_an_error_on_all_and_training_goes_on() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path()).unwrap();
    fs::write(scratch.path().join("file"), b"in the way").unwrap();
    two(|comm| {
        let good = scratch.path().join("good");
        let mut trainer = trainer(&comm)?;
        steps(&mut trainer, 1)?;
        save(&good, &mut trainer, 1)?;
        steps(&mut trainer, 1)?;
        let at = if comm.rank() == 1 { scratch.path().join("file/below") } else { good.clone() };
        let error = save(&at, &mut trainer, 2).unwrap_err().to_string();
        assert!(error.contains("file/below") && error.contains("Not a directory"), "{error}");
        steps(&mut trainer, 1)?;
        assert_eq!(load(&good, &comm)?, Some((1, 1)));
        assert_eq!(names(&good), ["step-000001"]);
        save(&good, &mut trainer, 3).map(drop)
    });
}

#[test]
fn nothing_is_saved_within_a_step_and_nothing_is_kept_if_nothing_is_to_be() {
    let scratch = Scratch::new();
    two(|comm| {
        let refused = |trainer: &mut Trainer<f32>, why: &str| {
            let error = save(scratch.path(), trainer, 1).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let mut trainer = trainer(&comm)?;
        let hooks = trainer.engine().hooks();
        let gradients = |trainer: &mut Trainer<f32>, mode| {
            trainer.engine().begin(mode)?;
            hooks.ready_slice(1, &[1.0f32; 3])?;
            hooks.ready_slice(0, &[1.0f32; 5])
        };
        gradients(&mut trainer, Mode::Accumulate)?;
        refused(&mut trainer, "within a backward pass");
        trainer.engine().finish()?;
        refused(&mut trainer, "accumulated");
        gradients(&mut trainer, Mode::Synchronize)?;
        trainer.engine().finish()?;
        refused(&mut trainer, "between a backward pass and its step");
        trainer.engine().step()?;
        let none = Checkpoints { keep: 0, ..Checkpoints::new(scratch.path()) };
        assert!(none.save(trainer.engine(), Record::default()).is_err());
        save(scratch.path(), &mut trainer, 1).map(drop)
    });
}

#[test]
fn a_rank_that_leaves_ends_the_others_saving() {
    let scratch = Scratch::new();
    let errors = spawn(TransportKind::Tcp, 2, |comm| {
        let mut trainer = trainer(&comm)?;
        steps(&mut trainer, 1)?;
        if comm.rank() == 1 {
            return Ok(None);
        }
        Ok(save(scratch.path(), &mut trainer, 1).err())
    });
    assert!(errors.unwrap()[0].is_some());
}

#[test]
fn a_directory_that_cannot_be_written_in_is_noticed_before_the_training() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path()).unwrap();
    fs::write(scratch.path().join("file"), b"in the way").unwrap();
    let at = |rank: usize| scratch.path().join(["good", "file"][rank]);
    let check = |comm: &Communicator| Checkpoints::new(at(comm.rank())).check(trainer(comm)?.engine());
    for error in errors_of(2, check) {
        assert!(error.contains("cannot read") && error.contains("/file"), "{error}");
    }
}

#[test]
fn links_are_followed_and_what_is_no_directory_is_no_checkpoint() {
    let scratch = Scratch::new();
    let elsewhere = Scratch::new();
    two_steps(scratch.path());
    fs::create_dir_all(elsewhere.path()).unwrap();
    let moved = elsewhere.path().join("moved");
    fs::rename(scratch.path().join("step-000002"), &moved).unwrap();
    std::os::unix::fs::symlink(&moved, scratch.path().join("step-000002")).unwrap();
    fs::write(scratch.path().join("step-000005"), b"a note of somebody's").unwrap();
    std::os::unix::fs::symlink("nowhere", scratch.path().join("step-000006")).unwrap();
    two(|comm| {
        assert_eq!(load(scratch.path(), &comm)?, Some((2, 2)));
        let mut trainer = trainer(&comm)?;
        Checkpoints::new(scratch.path()).load(trainer.engine())?;
        for step in 3..=5 {
            steps(&mut trainer, 1)?;
            save(scratch.path(), &mut trainer, step)?;
        }
        assert_eq!(load(scratch.path(), &comm)?, Some((5, 5)));
        Ok(())
    });
    assert_eq!(complete(scratch.path()), ["step-000004", "step-000005", "step-000005.1", "step-000006"]);
    // The link is removed, but not its target.
    assert_eq!(names(&moved).len(), 2);
}

#[test]
fn what_the_program_refuses_is_refused_on_every_rank_and_changes_nothing() {
    let scratch = Scratch::new();
    two_steps(scratch.path());
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        let fits = |own: &Record| match (comm.rank(), own.noted::<u64>("number")?) {
            (1, number) => {
                Err(hexagram_algorithms::logical::Error::usage(format!("{number} of what?"), "say"))
            }
            _ => Ok(()),
        };
        let refused = Checkpoints::new(scratch.path()).load_if(trainer.engine(), fits).err().unwrap();
        assert!(refused.to_string().contains("2 of what?"), "{refused}");
        assert_eq!((trainer.engine().steps(), trainer.parameters()?), (0, vec![vec![1.0; 5], vec![2.0; 3]]));
        Ok(())
    });
}
