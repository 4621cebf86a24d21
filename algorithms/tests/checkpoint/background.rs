//! Saves in the background: the state of the moment at which they begin, and errors. `killed` has the kills.

use super::{complete, record, steps, trainer, two};
use hexagram_algorithms::checkpoint::{BackgroundSaves, Checkpoints};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::registry;
use hexagram_algorithms::testing::{Scratch, Setup, Trainer};
use std::fs;

#[test]
fn a_checkpoint_has_the_state_at_which_its_save_has_begun() {
    for name in ["gradient-allreduce", "qadam(warmup=1)", "local-sgd", "async-model-average", "ssp"] {
        let scratch = Scratch::new();
        let algorithm = registry::named(name).unwrap();
        let trainer = |comm: &Communicator| {
            Trainer::<f32>::new(comm, algorithm.clone(), Setup::default(), &[vec![1.0; 5]])
        };
        let run = |comm: Communicator| {
            let mut first = trainer(&comm)?;
            let mut saves = BackgroundSaves::new(Checkpoints::new(scratch.path()));
            assert_eq!(saves.finish(first.engine())?, None);
            let mut saved = Vec::new();
            for number in 0..4 {
                steps(&mut first, 3)?;
                saves.begin(first.engine(), record(&comm, number))?;
                saved = first.parameters()?;
            }
            steps(&mut first, 2)?;
            let path = saves.finish(first.engine())?.unwrap();
            assert!(path.ends_with("step-000012") && !saves.is_in_progress(), "{path:?}");
            let mut second = trainer(&comm)?;
            let own = Checkpoints::new(scratch.path()).load(second.engine())?.unwrap();
            assert_eq!((own.noted::<u64>("number")?, second.engine().steps()), (3, 12));
            assert_eq!(second.parameters()?, saved, "{name}");
            first.engine().settle()
        };
        spawn(TransportKind::Thread, 3, run).unwrap();
        assert_eq!(complete(scratch.path()), ["step-000009", "step-000012"], "{name}");
    }
}

#[test]
fn the_error_of_a_save_comes_with_the_next_one_which_may_begin_again() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path()).unwrap();
    fs::write(scratch.path().join(".step-000001.partial"), "in the way").unwrap();
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        let mut saves = BackgroundSaves::new(Checkpoints::new(scratch.path()));
        steps(&mut trainer, 1)?;
        saves.begin(trainer.engine(), record(&comm, 1))?;
        steps(&mut trainer, 1)?;
        let error = saves.begin(trainer.engine(), record(&comm, 2)).unwrap_err().to_string();
        assert!(error.contains(".step-000001.partial"), "{error}");
        saves.begin(trainer.engine(), record(&comm, 2))?;
        steps(&mut trainer, 1)?;
        assert!(saves.finish(trainer.engine())?.unwrap().ends_with("step-000002"));
        Ok(())
    });
    assert_eq!(complete(scratch.path()), ["step-000002"]);
}

#[test]
fn a_save_that_is_dropped_is_completed() {
    let scratch = Scratch::new();
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        let mut saves = BackgroundSaves::new(Checkpoints::new(scratch.path()));
        steps(&mut trainer, 1)?;
        saves.begin(trainer.engine(), record(&comm, 1))
    });
    assert_eq!(complete(scratch.path()), ["step-000001"]);
}
