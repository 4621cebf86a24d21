//! `hexagram sample`: the lists of PyTorch and Bagua, as text and as JSON, and its errors.

use crate::harness::{Ended, folder, program, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn sample(arguments: &[&str]) -> Ended {
    let mut command = program(&["sample"]);
    command.args(arguments);
    run(command)
}

/// The one object that is printed.
fn object(arguments: &[&str]) -> Value {
    let ended = sample(&[arguments, &["--json"]].concat());
    assert_eq!((ended.code, ended.stdout.len(), ended.stderr.len()), (Some(0), 1, 0), "{:?}", ended.stderr);
    serde_json::from_str(&ended.stdout[0]).unwrap()
}

/// Complexities as the golden cases name them: a linear congruential generator.
fn complexities(path: &Path, given: &Value, len: u64) {
    let mut state = given["lcg_seed"].as_u64().unwrap();
    let modulo = given["modulo"].as_u64().unwrap();
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{}\n", (state >> 33) % modulo)
    };
    fs::write(path, (0..len).map(next).collect::<String>()).unwrap();
}

#[test]
fn lists_are_those_of_pytorch_and_bagua() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../sampler/tests/golden/samplers.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(golden).unwrap()).unwrap();
    let file = folder("golden").join("complexities");
    let known = |case: &&Value| case["sampler"] == "distributed" || case["sampler"] == "load_balancing";
    // Every fifth: the sampler crate compares them all.
    for case in golden["cases"].as_array().unwrap().iter().filter(known).step_by(5) {
        let number = |key: &str| case[key].to_string();
        let len = number("len");
        let ranks = number("num_replicas");
        let seed = number("seed");
        let epoch = number("epoch");
        let mut arguments = vec!["--len", &len, "--ranks", &ranks, "--seed", &seed, "--epoch", &epoch];
        if case["drop_last"] == true {
            arguments.push("--drop-last");
        }
        if case["shuffle"] == false {
            arguments.push("--no-shuffle");
        }
        let level = number("random_level");
        if case["sampler"] == "load_balancing" {
            complexities(&file, &case["complexity"], case["len"].as_u64().unwrap());
            arguments.extend(["--sampler", "load-balancing", "--random-level", &level]);
            arguments.extend(["--complexity", file.to_str().unwrap()]);
        }
        let object = object(&arguments);
        assert_eq!(object["ranks"].as_array().unwrap().len(), case["ranks"].as_array().unwrap().len());
        for (list, expected) in
            object["ranks"].as_array().unwrap().iter().zip(case["ranks"].as_array().unwrap())
        {
            let shown = expected.get("indices").or(expected.get("first")).unwrap().as_array().unwrap();
            assert_eq!(list.as_array().unwrap()[..shown.len()], shown[..], "{case}");
            assert_eq!(list.as_array().unwrap().len() as u64, expected["len"].as_u64().unwrap());
        }
        for key in ["len", "num_replicas", "seed", "epoch", "shuffle", "drop_last"] {
            assert_eq!(object[key], case[key], "{key}");
        }
        assert!(object["balance"].as_f64().unwrap() >= 1.0);
    }
}

#[test]
fn one_rank_is_one_list() {
    let all = sample(&["--len", "10", "--ranks", "3", "--no-shuffle"]);
    let expected = [
        "rank 0: 0 3 6 9",
        "rank 1: 1 4 7 0",
        "rank 2: 2 5 8 1",
        "balance: 1.0000 max/mean cost per step, 1.0000 in the worst",
    ];
    assert_eq!((all.code, &all.stdout[..]), (Some(0), &expected.map(str::to_owned)[..]));
    let one = sample(&["--len", "10", "--ranks", "3", "--no-shuffle", "--rank", "2"]);
    assert_eq!(one.stdout, expected[2..]);
    let json = object(&["--len", "10", "--ranks", "3", "--no-shuffle", "--rank", "2"]);
    assert_eq!((&json["rank"], &json["ranks"]), (&2.into(), &serde_json::json!([[2, 5, 8, 1]])));
}

#[test]
fn batches_are_lists_of_lists_and_equally_many() {
    let file = folder("batches").join("complexities");
    fs::write(&file, "1\n2\n3\n4\n5\n6\n7\n8\n9\n").unwrap();
    let file = file.to_str().unwrap();
    let common =
        ["--len", "9", "--ranks", "2", "--sampler", "batch", "--complexity", file, "--max-tokens", "10"];
    let padded = object(&[&common[..], &["--no-shuffle"]].concat());
    // Rank 0 has the samples of 1, 3, 5, 7 and 9 tokens, rank 1 those of 2, 4, 6, 8 and, to be even, 1.
    let lists = serde_json::json!([[[0, 2, 4], [6], [8]], [[1, 3], [5], [7, 0]]]);
    assert_eq!(padded["ranks"], lists);
    let balance = [9.0 / 7.5, 7.0 / 6.5, 9.0 / 9.0].iter().sum::<f64>() / 3.0;
    assert!((padded["balance"].as_f64().unwrap() - balance).abs() < 1e-12);
    assert_eq!(padded["max_tokens"], 10.0);
    let text = sample(&[&common[..], &["--no-shuffle", "--rank", "1"]].concat());
    assert_eq!(text.stdout[0], "rank 1: [1 3] [5] [7 0]");
    for arguments in [&common[..], &[&common[..], &["--drop-last", "--epoch", "3"]].concat()] {
        let ranks = object(arguments)["ranks"].clone();
        assert_eq!(ranks[0].as_array().unwrap().len(), ranks[1].as_array().unwrap().len());
    }
}

#[test]
fn calls_that_cannot_work_are_one_line() {
    let folder = folder("sample-refused");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good", "1\n2\n3\n");
    let nan = file("nan", "1\nNaN\n3\n");
    let negative = file("negative", "1\n-2\n3\n");
    let short = file("short", "1\n2\n");
    let words = file("words", "1\ntwo\n3\n");
    let empty = file("empty", "");
    let missing = folder.join("missing").to_str().unwrap().to_owned();
    let balancing = ["--len", "3", "--ranks", "2", "--sampler", "load-balancing"];
    let with = |more: &[&str]| [&balancing[..], more].concat().into_iter().map(str::to_owned).collect();
    let plain = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (arguments, code, what) in [
        (plain("--len 0 --ranks 2"), 2, "0 is not in 1..="),
        (plain("--len 9 --ranks 0"), 2, "0 is not in 1..=65536"),
        (plain("--len 9 --ranks 2 --rank 2"), 2, "rank 2 does not exist among 2 replicas"),
        (plain("--len 3 --ranks 4 --random-level 0.5"), 2, "--random-level requires"),
        (plain("--len 3 --ranks 4 --max-tokens 5"), 2, "--max-tokens requires --sampler batch"),
        (with(&[]), 2, "needs --complexity"),
        (with(&["--complexity", &good, "--random-level", "1.5"]), 2, "`random_level` cannot be 1.5"),
        (with(&["--complexity", &good, "--random-level", "-0.5"]), 2, "`random_level` cannot be -0.5"),
        (with(&["--complexity", &nan]), 1, "nan: line 2 is NaN instead of a finite number"),
        (with(&["--complexity", &negative]), 1, "negative: line 2 is -2 instead of a finite number"),
        (with(&["--complexity", &empty]), 1, "empty: it is empty; write one number per line"),
        (with(&["--complexity", "/dev/zero"]), 1, "/dev/zero: it is a pipe or a device"),
        (with(&["--complexity", folder.to_str().unwrap()]), 1, "it is a folder"),
        (with(&["--complexity", &short]), 2, "has 2 numbers instead of 3"),
        (with(&["--complexity", &words]), 1, "line 2 is not a number: \"two\""),
        (with(&["--complexity", &missing]), 1, "missing: "),
        (
            with(&["--complexity", &good, "--sampler", "batch"]),
            2,
            "the argument '--sampler <NAME>' cannot be used multiple",
        ),
        (plain(&format!("--len 3 --ranks 1 --sampler batch --complexity {good}")), 2, "needs --max-tokens"),
        (
            plain(&format!("--len 3 --ranks 1 --sampler batch --complexity {good} --max-tokens 2")),
            2,
            "sample 2 has 3 tokens",
        ),
        (
            plain(&format!("--len 3 --ranks 1 --sampler batch --complexity {good} --max-tokens -1")),
            2,
            "`max_tokens` cannot be -1",
        ),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = sample(&arguments);
        assert_eq!((ended.code, ended.stdout.len()), (Some(code), 0), "{arguments:?} {:?}", ended.stderr);
        assert!(ended.stderr[0].contains(what), "{arguments:?} {:?}", ended.stderr);
    }
}

#[test]
fn more_ranks_than_samples_are_padded_and_seeds_may_be_negative() {
    let padded = object(&["--len", "3", "--ranks", "5", "--no-shuffle"]);
    assert_eq!(padded["ranks"], serde_json::json!([[0], [1], [2], [0], [1]]));
    let negative = object(&["--len", "5", "--ranks", "1", "--seed", "-3"]);
    assert_eq!(
        negative["ranks"],
        serde_json::json!([[1, 4, 0, 3, 2]]),
        "torch.randperm(5) of manual_seed(-3)"
    );
}

#[test]
fn the_balance_of_the_greatest_costs_is_a_number() {
    let file = folder("greatest").join("complexities");
    fs::write(&file, "1e308\r\n".repeat(8)).unwrap();
    let file = file.to_str().unwrap();
    for sampler in ["distributed", "load-balancing"] {
        let all = object(&["--len", "8", "--ranks", "4", "--sampler", sampler, "--complexity", file]);
        assert_eq!((&all["balance"], &all["worst_balance"]), (&1.0.into(), &1.0.into()), "{sampler}");
    }
}
