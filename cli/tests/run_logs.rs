//! Where `hexagram run` writes the output of its ranks: to the terminal, and to files.

use crate::harness::{by_rank, folder, hexagram, run, shell, wrapped};
use std::fs;

#[test]
fn stdout_of_chosen_ranks_is_printed_and_stderr_of_all() {
    let script = "echo out; echo err >&2; test $HEXAGRAM_RANK != 1 || exit 3";
    let ended = run(shell(&["-n", "5", "--show", "0,2-3"], script));
    assert_eq!(ended.code, Some(3));
    assert!(by_rank(&ended.stdout).keys().eq(&[0, 2, 3]), "{:?}", ended.stdout);
    for rank in 0..5 {
        assert!(ended.stderr.contains(&format!("[{rank}] err")), "{:?}", ended.stderr);
    }
    assert!(ended.stderr.last().unwrap().contains("rank 1 (pid"), "{:?}", ended.stderr);
}

#[test]
fn whole_outputs_are_kept_in_files_of_their_own() {
    let folder = folder("logs").join("deeper");
    let logs = folder.to_str().unwrap();
    let script = "echo out $HEXAGRAM_RANK; seq 20000 >&2; printf 'no end'";
    let ended = run(shell(&["-n", "2", "--show", "1", "--log-dir", logs], script));
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    assert_eq!(ended.stdout, ["[1] out 1", "[1] no end"]);
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    for rank in 0..2 {
        let read = |stream: &str| fs::read_to_string(folder.join(format!("rank-{rank}.{stream}"))).unwrap();
        assert_eq!(read("out"), format!("out {rank}\nno end"));
        assert_eq!(read("err"), numbers);
    }
}

#[test]
fn files_of_another_job_are_never_overwritten() {
    let folder = folder("kept");
    let logs = folder.to_str().unwrap();
    fs::write(folder.join("rank-1.err"), "precious").unwrap();
    let mut command = shell(&["-n", "3", "--log-dir", logs], "touch $PLACE/started");
    command.env("PLACE", &folder);
    let ended = run(command);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr[0].contains("rank-1.err") && ended.stderr[0].contains("a separate folder"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing was started, and nothing left");
    assert_eq!(fs::read_to_string(folder.join("rank-1.err")).unwrap(), "precious");
}

#[test]
fn a_folder_for_logs_that_is_a_file_is_not_called_another_jobs() {
    let file = folder("no-folder").join("file");
    fs::write(&file, "").unwrap();
    let ended = run(shell(&["-n", "1", "--log-dir", file.to_str().unwrap()], "true"));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr[0].contains("choose a writable folder"), "{:?}", ended.stderr);
}

#[test]
fn a_job_that_cannot_start_leaves_no_files() {
    let folder = folder("unstarted");
    let ended = run(hexagram(&["-n", "2", "--log-dir", folder.to_str().unwrap(), "--", "no-such-program"]));
    assert_eq!(ended.code, Some(1));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_full_disk_is_said_once_and_at_the_end_and_ends_nothing() {
    let folder = folder("full");
    // A limit on the size of files stands for the disk.
    let script = "trap '' XFSZ; ulimit -f 4; exec \"$0\" run -n 1 --log-dir $PLACE -- seq 5000";
    let mut command = wrapped(script);
    command.env("PLACE", &folder);
    let ended = run(command);
    assert_eq!((ended.code, ended.stdout.len()), (Some(1), 5000));
    let [first, last] = &ended.stderr[..] else { panic!("{:?}", ended.stderr) };
    assert!(first.contains("rank-0.out: File too large"), "{first}");
    assert!(last.contains("every rank succeeded, but some output is lost"), "{last}");
}
