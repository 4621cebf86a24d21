//! `hexagram advise`: its output on a slow and on a fast link, and its errors.

use crate::harness::{Ended, folder, program, run};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// `hexagram advise` for a model of 50 000 elements whose passes take 9 ms, in a temporary folder.
fn command(name: &str, arguments: &str) -> Command {
    let model = folder(name).join("model");
    fs::write(&model, "first 20000 2\nsecond 30000 4\n").unwrap();
    let mut command = program(&["advise", "--model", model.to_str().unwrap()]);
    command.args(arguments.split_whitespace());
    command
}

/// Its output.
fn advise(name: &str, arguments: &str) -> Ended {
    run(command(name, arguments))
}

fn printed(name: &str, arguments: &str) -> Vec<String> {
    let ended = advise(name, arguments);
    assert_eq!((ended.code, ended.stderr), (Some(0), Vec::new()), "{arguments}");
    ended.stdout
}

const FEW: &str = "--algorithm bytegrad,local-sgd,d-psgd --ranks 4 --hosts 4";

#[test]
fn a_slow_link_makes_compression_pay_and_a_fast_one_does_not() {
    let slow = printed("slow", &format!("{FEW} --link 2mbit,50us"));
    assert!(slow[0].ends_with("model on 4 ranks of 4 hosts, 2mbit,50us between them"), "{slow:#?}");
    // A heading, its rule, and four algorithms, the fastest first.
    let times: Vec<f64> =
        slow[4..8].iter().map(|row| row.split(" | ").nth(2).unwrap().parse().unwrap()).collect();
    assert!(times.is_sorted(), "{slow:#?}");
    assert!(slow[9].starts_with("Compression pays here: `bytegrad` takes"), "{slow:#?}");
    let fast = printed("fast", &format!("{FEW} --link 100gbit,1us"));
    assert!(fast[9].starts_with("Compression does not pay here"), "{fast:#?}");
    assert!(fast[10].starts_with("No other algorithm in full precision pays"), "{fast:#?}");
}

#[test]
fn the_object_is_the_same_in_every_run() {
    let arguments = format!("{FEW} --link 20mbit,50us,jitter=20us --json");
    let once = printed("object", &arguments);
    assert_eq!(printed("object", &arguments), once);
    let object: Value = serde_json::from_str(&once[0]).unwrap();
    let names: Vec<&str> =
        object["results"].as_array().unwrap().iter().map(|one| one["algorithm"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 3, "{object}");
    assert_eq!(object["compression_pays"], true, "{object}");
    assert_eq!((&object["arguments"]["shape"], &object["ranks"]), (&"flat".into(), &4.into()));
    assert!(object["results"][0]["pays_up_to_bps"].as_f64().unwrap() >= 20e6, "{object}");
}

/// Two threads measure themselves, get advice, and run it; the speeds depend on the machine.
#[test]
fn present_ranks_are_measured_advised_and_checked() {
    let arguments = "--ranks 2 --transport thread --measure --check --json --algorithm bytegrad";
    // Without a deadline: the measurement of rates may take any time.
    let ended = command("present-ranks", arguments).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let object: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let asked = &object["arguments"];
    assert_eq!((&asked["measure"], &asked["check"], &object["hosts"]), (&true.into(), &2.into(), &2.into()));
    assert_ne!(asked["link"], "10gbit,50us", "what was measured, in place of the default");
    let rows = [&object["reference"], &object["results"][0]];
    let checks = object["check"].as_array().unwrap();
    let mut names: Vec<&str> = checks.iter().map(|one| one["algorithm"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["bytegrad", "gradient-allreduce"]);
    for one in checks {
        let row = rows.iter().find(|row| row["algorithm"] == one["algorithm"]).unwrap();
        let [advised, took, error] =
            ["advised_s", "took_s", "error_fraction"].map(|key| one[key].as_f64().unwrap());
        assert_eq!(Some(advised), row["step_s"].as_f64());
        assert!(took > 0.0 && (error - (advised / took - 1.0)).abs() < 1e-9, "{one}");
    }
    // Both ranks send the bytes of an all-reduce and of eight bits, for 50 000 elements.
    let sent = rows.map(|row| row["bytes_per_rank_step"].as_f64().unwrap());
    assert!(sent[0] == 200_000.0 && sent[1] < 0.3 * sent[0], "{sent:?}");
}

#[test]
fn a_cluster_that_is_described_is_refused_where_the_present_one_counts() {
    for arguments in [
        "--measure --topology cluster",
        "--measure --shape flat",
        "--measure --hosts 2",
        "--measure --link 1gbit,1us",
        "--check --topology cluster",
        "--check --shape flat",
        "--check --hosts 2",
    ] {
        let ended = advise("present", arguments);
        assert_eq!((ended.code, ended.stdout.len()), (Some(2), 0), "{arguments}: {:?}", ended.stderr);
        assert!(ended.stderr[0].contains("cannot be used with"), "{arguments}: {:?}", ended.stderr);
    }
}

#[test]
fn as_many_algorithms_are_checked_as_are_asked_for() {
    let link = "--algorithm bytegrad,local-sgd(period=2) --ranks 2 --link 100mbit,50us --accelerator --json";
    for (asked, names) in [
        ("--check", &["bytegrad", "local-sgd(period=2)"][..]),
        ("--check 1", &["bytegrad"]),
        ("--check all", &["bytegrad", "local-sgd(period=2)", "gradient-allreduce"]),
    ] {
        let lines = printed("checked", &format!("{link} {asked}"));
        let object: Value = serde_json::from_str(&lines[0]).unwrap();
        let checks = object["check"].as_array().unwrap();
        let found: Vec<&str> = checks.iter().map(|one| one["algorithm"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{asked}");
        let of = |one: &Value, name: &str| one[name].as_f64().unwrap();
        assert!(checks.iter().all(|one| of(one, "took_s") >= 9e-3), "passes take 9 ms: {checks:?}");
        for one in checks {
            let error = of(one, "advised_s") / of(one, "took_s") - 1.0;
            assert!((of(one, "error_fraction") - error).abs() < 1e-9, "{one}");
        }
    }
    let refused = advise("checked", "--check 0");
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr[0].ends_with("`0` is not a number of algorithms; write one, as in 3, or `all`"));
}

#[test]
fn what_is_wrong_is_one_line() {
    for (arguments, said) in [
        ("--ranks 4", "4 ranks on one host never use the link between hosts; give --hosts"),
        ("--ranks 4 --hosts 4 --algorithm gradient-allreduce", "no algorithm to compare to"),
        ("--ranks 4 --hosts 3", "4 ranks cannot be spread evenly over 3 hosts"),
        ("--ranks 4 --hosts 4 --algorithm byte-grad", "did you mean bytegrad?"),
    ] {
        let ended = advise("wrong", arguments);
        let lines = (ended.stderr.len(), ended.stdout.len());
        assert_eq!((ended.code, lines), (Some(2), (1, 0)), "{arguments}: {:?}", ended.stderr);
        assert!(ended.stderr[0].contains(said), "{arguments}: {:?}", ended.stderr);
    }
}
