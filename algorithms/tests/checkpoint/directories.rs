//! Directories of checkpoints that have changed since a training wrote them: renamed, copied, or used by another
//! training.

use super::*;

#[test]
fn a_training_saves_only_among_checkpoints_that_it_continues() {
    let scratch = Scratch::new();
    let host = |rank: usize| scratch.path().join(format!("host{rank}"));
    // Only rank 0's host has them.
    spawn(TransportKind::Thread, 1, |comm| {
        let mut trainer = trainer(&comm)?;
        steps(&mut trainer, 9)?;
        save(&host(0), &mut trainer, 9)
    })
    .unwrap();
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        steps(&mut trainer, 1)?;
        let checkpoints = Checkpoints::new(host(comm.rank()));
        let refused = checkpoints.check(trainer.engine()).unwrap_err();
        for error in [refused, save(&host(comm.rank()), &mut trainer, 1).unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("host0/step-000009 exists, from a training that"), "{error}");
            assert!(error.contains("resume from it, choose another directory, or remove"), "{error}");
        }
        // It may save in another directory, and continues there.
        let other = scratch.path().join("other");
        Checkpoints::new(&other).check(trainer.engine())?;
        assert_eq!(names(&other), [""; 0]);
        comm.blocking().barrier()?;
        for number in 1..=2 {
            save(&other, &mut trainer, number)?;
        }
        Checkpoints::new(&other).check(trainer.engine())
    });
    assert_eq!(names(&host(0)), ["step-000009"]);
    assert_eq!(names(&host(1)), [""; 0]);
}

/// Copies a checkpoint under another name.
fn copy(at: &Path, from: &str, to: &str) {
    fs::create_dir(at.join(to)).unwrap();
    for file in names(&at.join(from)) {
        fs::copy(at.join(from).join(&file), at.join(to).join(&file)).unwrap();
    }
}

#[test]
fn a_renamed_directory_counts_as_what_is_in_it_and_is_not_deleted() {
    let scratch = Scratch::new();
    let at = scratch.path();
    two_steps(at);
    let newest = || spawn(TransportKind::Thread, 2, |comm| load(at, &comm)).unwrap();
    for renamed in ["step-000999", "step-7"] {
        fs::rename(at.join("step-000001"), at.join(renamed)).unwrap();
        assert_eq!(newest(), [Some((2, 2)); 2], "{renamed}");
        fs::rename(at.join(renamed), at.join("step-000001")).unwrap();
    }
    copy(at, "step-000001", "step-000999");
    copy(at, "step-000002", "step-000003");
    assert_eq!(newest(), [Some((2, 2)); 2]);
    fs::remove_dir_all(at.join("step-000002")).unwrap();
    assert_eq!(newest(), [Some((2, 2)); 2]);
    // A training that continues uses no existing name, and deletes no directory that it did not create.
    two(|comm| {
        let mut trainer = trainer(&comm)?;
        Checkpoints::new(at).load(trainer.engine())?;
        for step in 3..=5 {
            steps(&mut trainer, 1)?;
            save(at, &mut trainer, step)?;
        }
        Ok(())
    });
    assert_eq!(complete(at), ["step-000003", "step-000004", "step-000005", "step-000999"]);
    assert_eq!(newest(), [Some((5, 5)); 2]);
}

#[test]
fn a_renamed_directory_of_different_saves_is_refused_all_the_same() {
    let scratch = Scratch::new();
    two_steps(scratch.path());
    let file = |step: u64| scratch.path().join(format!("step-{step:06}/rank-00000-of-00002.safetensors"));
    // The file of rank 0 is read first.
    fs::copy(file(1), file(2)).unwrap();
    for error in errors_of(2, |comm| load(scratch.path(), comm).map(drop)) {
        assert!(error.contains("not of one save"), "{error}");
    }
}

#[test]
fn of_two_trainings_in_one_directory_the_second_is_refused_until_the_first_has_ended() {
    let scratch = Scratch::new();
    let refused = |outcome: Result<()>| {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("another training saves in"), "{error}");
    };
    two(|comm| {
        let at = Checkpoints::new(scratch.path());
        let mut first = trainer(&comm)?;
        let mut second = trainer(&comm)?;
        at.check(first.engine())?;
        refused(at.check(second.engine()));
        steps(&mut first, 1)?;
        steps(&mut second, 1)?;
        refused(save(scratch.path(), &mut second, 1).map(drop));
        save(scratch.path(), &mut first, 1)?;
        drop(first);
        comm.blocking().barrier()?;
        at.load(second.engine())?;
        at.check(second.engine())
    });
}
