//! Start-up, heartbeats and verdicts in virtual time, by the code of real jobs.

use super::*;
use crate::control::health::HeartbeatOptions;

/// Time for which the ranks of these jobs do nothing, unless one fails.
const WORK: Duration = Duration::from_secs(12);

/// Culprit that a rank's verdict names, and its time.
type Told = Option<(usize, Duration)>;

fn job(faults: &[&str]) -> Outcome<Option<Ended<Told>>> {
    flawed(faults, None)
}

/// Plays a job of six ranks on three hosts, which end with the first failure.
fn flawed(faults: &[&str], flaw: Option<Flaw>) -> Outcome<Option<Ended<Told>>> {
    let faults = faults.iter().map(|fault| fault.parse().unwrap()).collect();
    let simulation = Simulation { faults, ..Simulation::new(cluster(6, 3)) };
    let job = Job { flaw, ..Job::default() };
    let played = simulation.play(&job, |world| {
        let start = runtime::now();
        while world.health().verdict().is_none() && start.elapsed() < WORK {
            runtime::sleep(Duration::from_millis(10));
        }
        let culprit = world.health().verdict().map(|verdict| verdict.culprit.rank);
        Ok(culprit.map(|culprit| (culprit, start.elapsed())))
    });
    played.unwrap().outcome
}

/// Returns the verdicts that ranks received, by rank; all ranks must have ended.
fn told(faults: &[&str]) -> Vec<Told> {
    job(faults).results.into_iter().map(|ended| ended.unwrap().result.unwrap()).collect()
}

fn culprits(faults: &[&str], ranks: &[usize]) -> Vec<Option<usize>> {
    let told = told(faults);
    ranks.iter().map(|rank| told[*rank].map(|(culprit, _)| culprit)).collect()
}

#[test]
fn ranks_meet_and_part_in_virtual_time() {
    let outcome = job(&[]);
    for ended in outcome.results {
        let ended = ended.unwrap();
        assert_eq!(ended.result.unwrap(), None);
        assert!((WORK..WORK + Duration::from_secs(1)).contains(&ended.at), "{:?}", ended.at);
    }
}

#[test]
fn the_dead_are_named_at_once_and_the_silent_after_the_silence() {
    for (fault, culprit) in [("3s rank 4 dies", 4), ("3s rank 0 dies", 0)] {
        for (rank, told) in told(&[fault]).into_iter().enumerate().filter(|(rank, _)| *rank != culprit) {
            let (named, after) = told.unwrap();
            assert_eq!(named, culprit, "{fault}, rank {rank}");
            assert!(after < Duration::from_millis(3100), "{fault}, rank {rank}: {after:?}");
        }
    }
    let tolerance = HeartbeatOptions::default().tolerance();
    for (fault, culprit) in [("3s rank 4 stops", 4), ("3s rank 0 stops", 0)] {
        for (rank, told) in told(&[fault]).into_iter().enumerate().filter(|(rank, _)| *rank != culprit) {
            let (named, after) = told.unwrap();
            assert_eq!(named, culprit, "{fault}, rank {rank}");
            let silent = after - Duration::from_secs(3);
            assert!(
                silent > HeartbeatOptions::default().silence
                    && silent < tolerance + Duration::from_millis(100)
            );
        }
    }
}

#[test]
fn a_stop_or_a_cut_that_is_shorter_than_the_silence_is_no_failure() {
    for rank in 0..6 {
        let stop = format!("3.1s rank {rank} stops");
        let resume = format!("7.09s rank {rank} resumes");
        assert_eq!(told(&[&stop, &resume]), [None; 6], "rank {rank}");
    }
    assert_eq!(told(&["3s cut 0 <-> 1,2", "6.9s heal"]), [None; 6]);
    assert_eq!(told(&["3s slow 1 to 0.01"]), [None; 6]);
}

#[test]
fn both_sides_of_a_cut_name_the_other() {
    let cut = ["3s cut 0,1 <-> 2"];
    assert!(culprits(&cut, &[0, 1, 2, 3]).iter().all(|named| matches!(named, Some(4 | 5))));
    assert_eq!(culprits(&cut, &[4, 5]), [Some(0); 2]);
    let gone = ["3s host 1 dies"];
    assert!(culprits(&gone, &[0, 1, 4, 5]).iter().all(|named| matches!(named, Some(2 | 3))));
}

#[test]
fn a_rank_that_never_comes_is_missed() {
    let outcome = job(&["0s rank 3 stops"]);
    for (rank, ended) in outcome.results.into_iter().enumerate().filter(|(rank, _)| *rank != 3) {
        let ended = ended.unwrap();
        let error = ended.result.unwrap_err().to_string();
        assert!(error.contains("rank 3 of 6 did not join within 60s"), "rank {rank}: {error}");
        assert!(ended.at < Duration::from_secs(65), "rank {rank}: {:?}", ended.at);
    }
}

#[test]
fn a_job_is_like_any_other_of_its_seed() {
    let counts = || {
        let outcome = job(&["3s rank 4 stops", "5s cut 0 -> 1"]);
        (outcome.elapsed, outcome.events, outcome.fingerprint)
    };
    assert_eq!(counts(), counts());
}

#[test]
fn a_heartbeat_that_is_skipped_blames_a_rank_that_was_stopped_for_less_than_the_silence() {
    let blamed = (0..8).any(|eighth| {
        let stop = format!("{}ms rank 4 stops", 3000 + 125 * eighth);
        let resume = format!("{}ms rank 4 resumes", 3000 + 125 * eighth + 3990);
        let outcome = flawed(&[&stop, &resume], Some(Flaw::SkipHeartbeats { every: 4 }));
        outcome.results.into_iter().any(|ended| ended.unwrap().result.unwrap().is_some())
    });
    assert!(blamed);
}
