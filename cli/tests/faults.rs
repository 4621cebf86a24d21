//! `hexagram simulate --faults`: its runs, and its errors.

use crate::harness::{Ended, folder, program, run};
use std::fs;

#[test]
fn faults_are_tried_by_seed_and_a_seed_is_replayed_with_its_events() {
    let try_seeds = |count: &str| run(program(&["simulate", "--faults", count, "--seed", "5"]));
    let tried = try_seeds("3");
    assert_eq!(tried.code, Some(0), "{:?}", tried.stdout);
    assert!(tried.stdout[0].starts_with("3 seeds from 5: "), "{:?}", tried.stdout);
    let replayed = try_seeds("1");
    assert_eq!(replayed.code, Some(0));
    assert!(replayed.stdout[0].starts_with("seed 5: "), "{:?}", replayed.stdout);
    assert!(replayed.stdout.iter().any(|line| line.ends_with("arrives at rank 0")));
    assert_eq!(replayed.stdout, try_seeds("1").stdout);
}

#[test]
fn faults_of_a_file_are_played_and_a_wrong_line_is_named() {
    let file = folder("faults").join("faults");
    let play = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = program(&["simulate", "--faults", file.to_str().unwrap()]);
        command.args(["-n4", "--hosts=2", "--algorithm=bytegrad"]);
        run(command)
    };
    let played = play("3s rank 2 dies\n");
    assert_eq!(played.code, Some(0));
    assert!(
        played.stdout.iter().any(|line| line.contains("rank 2 (host host1, pid 2) died")),
        "{:?}",
        played.stdout
    );
    // A training ends after about 10 s.
    let late = play("3s slow 1 to 0.5\n100s rank 2 dies\n");
    assert_eq!(late.code, Some(0));
    let said = "`100s rank 2 dies` did not happen: all ranks had ended";
    assert!(late.stdout.iter().any(|line| line == said), "{:?}", late.stdout.last());
    let never = play("3s rank 2 stops\n300s heal\n");
    assert!(never.code == Some(2) && never.stderr.concat().contains("line 2: `300s heal` is after the end"));
    // Of several algorithms it would be one, and not the one that was meant.
    let many = run(program(&["simulate", "--faults", file.to_str().unwrap(), "--algorithm=bytegrad,qadam"]));
    assert_eq!(many.code, Some(2));
    assert!(many.stderr.concat().contains("--faults FILE needs one algorithm, and 2 are chosen"));
    let refused = play("# well\n3s rank 4 dies\n");
    assert_eq!(refused.code, Some(2));
    let line = refused.stderr.concat();
    assert!(
        line.contains("line 2: `3s rank 4 dies`: rank 4 does not exist") && line.contains("0 to 3"),
        "{line}"
    );
}

#[test]
fn what_a_search_for_faults_does_not_heed_is_refused() {
    for arguments in [
        "3 --out folder",
        "3 --trace trace",
        "3 --link 1gbit,1us",
        "3 --intra 1gbit,1us",
        "3 --shape flat",
        "3 --topology cluster",
        "3 --steps 5",
        "3 --all-steps",
        "3 --warmup 2",
        "3 --model vgg16",
        "3 --compute 5",
        "3 --straggler 1:2",
        "3 --compute-jitter 5%",
        "3 --rates rates",
        "3 --optimizer adam",
        "3 --overlap backward",
        "3 --from-start",
        "3 --ranks 4 --hosts 2",
        "3 --flat",
    ] {
        let mut command = program(&["simulate", "--faults"]);
        command.args(arguments.split_whitespace());
        let Ended { code, stdout, stderr } = run(command);
        assert_eq!((code, stdout.len()), (Some(2), 0), "{arguments}: {stderr:#?}");
        let word = arguments.split(' ').nth(1).unwrap();
        assert!(stderr[0].contains("--faults") && stderr[0].contains(word), "{arguments}: {stderr:#?}");
    }
}
