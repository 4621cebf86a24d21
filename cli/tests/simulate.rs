//! `hexagram simulate`: its output, which is reproducible, and its errors.

use crate::harness::{Ended, folder, program, run};
use serde_json::Value;
use std::fs;

/// A model of 50 000 elements whose passes take 9 ms.
const MODEL: &str = "# name elements backward_ms\nfirst 20000 2\nsecond 30000 4\n";

/// The output of `hexagram simulate` for that model, in a temporary folder.
fn simulate(name: &str, arguments: &str) -> Ended {
    let model = folder(name).join("model");
    fs::write(&model, MODEL).unwrap();
    let mut command = program(&["simulate", "--model", model.to_str().unwrap()]);
    command.args(arguments.split_whitespace());
    run(command)
}

/// The lines that it prints, if all is well.
fn printed(name: &str, arguments: &str) -> Vec<String> {
    let ended = simulate(name, arguments);
    assert_eq!((ended.code, ended.stderr), (Some(0), Vec::new()), "{arguments}");
    ended.stdout
}

/// The one object that it prints with `--json`.
fn object(name: &str, arguments: &str) -> Value {
    let printed = printed(name, &format!("{arguments} --json"));
    let [line] = &printed[..] else { panic!("{printed:#?}") };
    serde_json::from_str(line).unwrap()
}

/// One figure of each result.
fn figures(object: &Value, key: &str) -> Vec<f64> {
    object["results"].as_array().unwrap().iter().map(|result| result[key].as_f64().unwrap()).collect()
}

#[test]
fn a_table_has_a_row_for_each_algorithm_on_each_cluster() {
    let arguments = "--algorithm gradient-allreduce,local-sgd(period=2),topk-ef --ranks 4 --hosts 2 \
                     --link 1gbit,50us --sweep latency=50us,5ms --steps 4";
    let lines = printed("table", arguments);
    assert!(lines[0].ends_with("model, 50000 parameters, in virtual time"), "{lines:#?}");
    assert_eq!(lines[2].split(" | ").count(), lines[4].split(" | ").count());
    let rows: Vec<String> =
        lines[4..].iter().map(|line| line.split(" | ").take(3).collect::<Vec<_>>().join(" | ")).collect();
    assert_eq!(
        rows,
        [
            "| `gradient-allreduce` | 4 on 2 | 1gbit,50us",
            "| `local-sgd(period=2)` | 4 on 2 | 1gbit,50us",
            "| `topk-ef` | 4 on 2 | 1gbit,50us",
            "| `gradient-allreduce` | 4 on 2 | 1gbit,5ms",
            "| `local-sgd(period=2)` | 4 on 2 | 1gbit,5ms",
            "| `topk-ef` | 4 on 2 | 1gbit,5ms",
        ]
    );
}

#[test]
fn an_object_has_the_arguments_and_the_figures_of_each_result() {
    let arguments = "--algorithm gradient-allreduce,bytegrad --ranks 4 --hosts 4 --link 1gbit,50us --compute 30 \
                     --straggler 1:2 --steps 3 --warmup 1 --seed 7 --flat --optimizer adam --overlap forward";
    let object = object("object", arguments);
    let asked = &object["arguments"];
    for (key, value) in [
        ("algorithm", "gradient-allreduce,bytegrad"),
        ("link", "1gbit,50us"),
        ("intra", "300gbit,2us"),
        ("optimizer", "adam"),
        ("overlap", "forward"),
    ] {
        assert_eq!(asked[key], value, "{asked}");
    }
    for (key, value) in [("ranks", 4), ("hosts", 4), ("steps", 3), ("warmup", 1), ("seed", 7)] {
        assert_eq!(asked[key], value, "{asked}");
    }
    assert_eq!((&asked["flat"], &asked["compute_ms"]), (&Value::Bool(true), &Value::from(30.0)));
    assert_eq!(asked["straggler"], Value::from(vec!["1:2"]));
    let [full, bytes] = &object["results"].as_array().unwrap()[..] else { panic!("{object}") };
    assert_eq!((&full["algorithm"], &bytes["algorithm"]), (&"gradient-allreduce".into(), &"bytegrad".into()));
    for result in [full, bytes] {
        assert_eq!((&result["ranks"], &result["hosts"]), (&4.into(), &4.into()));
        assert_eq!((&result["bandwidth_bps"], &result["latency_s"]), (&1e9.into(), &5e-5.into()));
        let step = result["step_s"].as_f64().unwrap();
        let share = result["comm_fraction"].as_f64().unwrap();
        // The straggler computes for twice 30 ms.
        assert!(step > 0.06 && share > 0.0 && (step * (1.0 - share) - 0.06).abs() < 1e-3, "{result}");
    }
    // 2 (n − 1)/n · 200 000 bytes, and a quarter of that.
    let sent = figures(&object, "bytes_per_rank_step");
    assert_eq!(sent[0], 300_000.0);
    assert!((75_000.0..80_000.0).contains(&sent[1]), "{sent:?}");
}

#[test]
fn figures_follow_what_is_swept() {
    let of = |arguments: &str, key| figures(&object("swept", arguments), key);
    let steps =
        of("--algorithm gradient-allreduce --hosts 8 --sweep bandwidth=100mbit,1gbit,10gbit", "step_s");
    assert!(steps[0] > 2.0 * steps[1] && steps[1] > steps[2], "{steps:?}");
    let steps = of("--algorithm gradient-allreduce --hosts 8 --sweep latency=10us,10ms", "step_s");
    assert!(steps[1] > steps[0] + 0.02, "{steps:?}");
    let swept = "--algorithm gradient-allreduce --ranks 8 --hosts 4 --sweep ranks=2,8,12";
    assert_eq!(of(swept, "ranks"), [2.0, 8.0, 12.0]);
    assert_eq!(of(swept, "hosts"), [1.0, 4.0, 6.0]);
}

#[test]
fn the_same_seed_prints_the_same_bytes_and_another_seed_others() {
    let with = |seed: u32| {
        let arguments = format!(
            "--algorithm gradient-allreduce,d-psgd,ad-psgd,powersgd --ranks 6 --hosts 3 --steps 5 \
             --link 1gbit,50us,jitter=30us,stall=0.1:3ms --seed {seed}"
        );
        [printed("seed", &arguments), printed("seed", &format!("{arguments} --json"))]
    };
    let first = with(1);
    assert_eq!(first, with(1));
    let second = with(2);
    assert_ne!(first[0], second[0]);
    assert_ne!(first[1], second[1]);
}

#[test]
fn bytes_that_stay_on_a_host_are_told_from_those_that_leave_it() {
    let sent = |arguments: &str| {
        let object = object("sent", &format!("--algorithm gradient-allreduce --ranks 4 {arguments}"));
        assert_eq!(object["arguments"]["steps"], 20);
        ["bytes_per_rank_step", "network_bytes_per_rank_step"].map(|key| figures(&object, key)[0])
    };
    // 2 (n − 1)/n · 200 000 bytes.
    assert_eq!(sent("--hosts 4"), [300_000.0, 300_000.0]);
    assert_eq!(sent("--hosts 1"), [300_000.0, 0.0]);
    // Two hosts exchange the sums of two ranks each.
    let [all, network] = sent("--hosts 2");
    assert!(network > 0.0 && network <= 100_000.0 && all > network, "{all} {network}");
}

#[test]
fn algorithms_are_measured_after_their_warm_up_and_as_they_are_spelled() {
    let simulated = |arguments: &str| {
        let asked =
            "--algorithm powersgd,post-local-sgd,qadam,dgc,zero-one-adam,slowmo(base=powersgd),bytegrad";
        let object = object("warm", &format!("{asked} --ranks 4 --hosts 4 --steps 8 {arguments}"));
        let results = object["results"].as_array().unwrap().clone();
        let of =
            |key: &str| results.iter().map(|row| row[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        (of("algorithm"), of("simulated"), figures(&object, "bytes_per_rank_step"))
    };
    let (asked, spelled, sent) = simulated("");
    assert_eq!(asked[0], "powersgd");
    assert_eq!(
        spelled,
        [
            "powersgd(start=0)",
            "post-local-sgd(start=0)",
            "qadam(warmup=1)",
            "dgc(warm_up=0)",
            "zero-one-adam(freeze=1, local_doubling=1)",
            "slowmo(base=powersgd(rank=2, saving=2, start=0))",
            "bytegrad"
        ]
    );
    let (asked, spelled, whole) = simulated("--from-start");
    assert_eq!(asked, spelled);
    // The model has vectors only, which PowerSGD and DGC send whole.
    assert!([1, 2, 4].iter().all(|at| sent[*at] < whole[*at] / 2.0), "{sent:?} {whole:?}");
    assert!([0, 3, 5, 6].iter().all(|at| sent[*at] == whole[*at]), "{sent:?} {whole:?}");
}

/// A model of four buckets, 160 MB, whose passes take 9 ms.
const LARGE: &str = "a 10000000 2\nb 10000000 2\nc 10000000 1\nd 10000000 1\n";

#[test]
fn steps_without_communication_take_the_time_of_computation() {
    let model = folder("local").join("model");
    fs::write(&model, LARGE).unwrap();
    let mut command = program(&["simulate", "--json", "--model", model.to_str().unwrap()]);
    command.args([
        "--algorithm",
        "local-sgd(period=1000),diloco(period=1000),gradient-allreduce",
        "--ranks",
        "1",
    ]);
    let printed = run(command).stdout;
    let object: Value = serde_json::from_str(&printed[0]).unwrap();
    // In addition to 9 ms, the optimizers read and write 160 MB several times at 700 GB/s.
    assert!(figures(&object, "step_s").iter().all(|step| (0.009..0.013).contains(step)), "{object}");
}

#[test]
fn what_the_host_computes_for_others_takes_the_time_of_its_rates() {
    let folder = folder("rates");
    let model = folder.join("model");
    fs::write(&model, LARGE).unwrap();
    let seconds = |rates: &str| {
        let file = folder.join("rates");
        fs::write(&file, rates).unwrap();
        let mut command = program(&["simulate", "--json", "--model", model.to_str().unwrap(), "--rates"]);
        command.args([file.to_str().unwrap(), "--algorithm", "powersgd,dion,demo,muloco", "--ranks", "2"]);
        let Ended { code, stdout, stderr } = run(command);
        assert_eq!((code, stderr), (Some(0), Vec::new()));
        figures(&serde_json::from_str(&stdout[0]).unwrap(), "step_s")
    };
    let free = seconds("# nothing takes time\n");
    let slow = seconds("encode powersgd 1e8\nproduct 1e11\n");
    // Two rounds of 40 million elements, and products of at least as many operations as a transform in blocks has.
    assert!(slow[0] > free[0] + 0.7, "{free:?} {slow:?}");
    assert!(slow[1..].iter().zip(&free[1..]).all(|(slow, free)| *slow > free + 0.1), "{free:?} {slow:?}");
}

#[test]
fn a_topology_is_simulated_as_its_file_says() {
    let folder = folder("topology");
    let file = folder.join("cluster");
    fs::write(&file, "hosts 3 ranks=2\nhosts 1 link=100mbit,50us\nracks 2 oversubscription=2\n").unwrap();
    let of =
        |arguments: &str| object("topology-model", &format!("--algorithm gradient-allreduce {arguments}"));
    let whole = of(&format!("--topology {} --sweep bandwidth=200mbit,10gbit", file.display()));
    assert_eq!(whole["arguments"]["topology"], file.to_str().unwrap());
    assert_eq!((figures(&whole, "ranks"), figures(&whole, "hosts")), (vec![7.0; 2], vec![4.0; 2]));
    // The swept link, although the slowest host has its own.
    assert_eq!(figures(&whole, "bandwidth_bps"), [2e8, 1e10]);
    fs::write(&file, "hosts 3 link=1gbit,9us\nhosts 1 link=100mbit,50us\n").unwrap();
    let own = of(&format!("--topology {}", file.display()));
    assert_eq!(figures(&own, "bandwidth_bps"), [1e8]);
    for (arguments, word) in [
        ("--link 1gbit,50us", "has a link= for every host, and --link has no effect"),
        ("--sweep bandwidth=1gbit,10gbit", "remove link="),
    ] {
        let ended = simulate("topology-model", &format!("{arguments} --topology {}", file.display()));
        assert!(ended.code == Some(2) && ended.stderr.concat().contains(word), "{:?}", ended.stderr);
    }
    let step = |arguments: &str| figures(&of(arguments), "step_s")[0];
    let shape = |shape: &str| {
        let model = folder.join("model");
        fs::write(&model, MODEL).unwrap();
        let mut command =
            program(&["simulate", "--json", "--model", model.to_str().unwrap(), "--shape", shape]);
        command.args(["--algorithm", "gradient-allreduce", "--hosts", "8", "--link", "200mbit,50us"]);
        figures(&serde_json::from_str(&run(command).stdout[0]).unwrap(), "step_s")[0]
    };
    let flat = step("--hosts 8 --link 200mbit,50us");
    assert_eq!(shape("flat"), flat);
    assert_eq!(shape("fat-tree 4"), flat);
    assert!(shape("fat-tree 4 latency=1ms") > flat + 0.001);
    assert!(shape("sites 2 link=20mbit,20ms") > shape("racks 4 oversubscription=2 latency=1ms"));
}

#[test]
fn a_wrong_file_is_named_with_its_line_and_what_is_right() {
    let folder = folder("files");
    for (option, text, words) in [
        ("--model", "a 10 1\nb ten 1\n", &["line 2", "`b ten 1`", "NAME ELEMENTS BACKWARD_MS"][..]),
        ("--model", "# nothing\n", &["has no parameters", "NAME ELEMENTS BACKWARD_MS"]),
        ("--topology", "hosts 2\nracks\n", &["line 2", "`racks`", "racks NUMBER [oversubscription=FACTOR]"]),
        ("--topology", "hosts 3\nracks 2\n", &["line 2", "3 hosts cannot be divided equally"]),
        ("--topology", "hosts 2\nlink host0 host7 1gbit,1us\n", &["line 2", "`host7`", "host0 to host1"]),
        ("--topology", "switch a\n", &["no hosts", "hosts NUMBER"]),
        ("--rates", "copy 1e9\ncopy fast\n", &["line 2", "`copy fast`", "BYTES_A_SECOND", "message 3us"]),
        ("--rates", "copy 1e9\ncopy 2e9\n", &["line 2", "`copy 2e9`", "line 1", "remove one of the two"]),
        ("--rates", "# own\nencode signn 1e9\n", &["line 2", "unknown codec `signn`", "did you mean sign?"]),
        (
            "--topology",
            "hosts 2\nflat\nracks 2\n",
            &["line 3", "`racks 2`", "line 2", "remove one of the two"],
        ),
    ] {
        let file = folder.join("wrong");
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let Ended { code, stdout, stderr } = run(program(&["simulate", option, file]));
        let [line] = &stderr[..] else { panic!("{stderr:#?}") };
        assert_eq!((code, stdout.len()), (Some(2), 0), "{line}");
        assert!(line.contains(file) && words.iter().all(|word| line.contains(word)), "{line}");
    }
    let misspelt = run(program(&["simulate", "--model", "vgg17"]));
    let said = "hexagram simulate: unknown model or file `vgg17`; did you mean vgg16?";
    assert_eq!((misspelt.code, misspelt.stderr), (Some(2), vec![said.to_owned()]));
    for (option, file) in [
        ("--model", "/does/not/exist"),
        ("--rates", "/does/not/exist"),
        ("--topology", "/does/not/exist"),
        ("--model", "/tmp"),
    ] {
        let Ended { code, stdout, stderr } = run(program(&["simulate", option, file]));
        let [line] = &stderr[..] else { panic!("{stderr:#?}") };
        assert!(code == Some(1) && stdout.is_empty() && line.contains(file), "{line}");
    }
}

#[test]
fn a_wrong_call_is_refused_in_one_line_before_anything_is_simulated() {
    for (arguments, word) in [
        ("--ranks 0", "0 ranks cannot be spread evenly over 1 hosts; use 1 to"),
        ("--ranks 6 --hosts 4", "6 ranks cannot be spread evenly over 4 hosts"),
        ("--hosts 0", "8 ranks cannot be spread evenly over 0 hosts"),
        (
            "--sweep ranks=8,9 --hosts 4",
            "9 ranks do not fill hosts of 2 ranks; use fewer ranks than 2, or multiples",
        ),
        ("--hosts 3 --sweep ranks=8,16", "8 ranks cannot be spread evenly over 3 hosts"),
        ("--hosts 0 --sweep ranks=8,16", "8 ranks cannot be spread evenly over 0 hosts"),
        ("--link 1gbit,50us", "8 ranks on one host never use the link between hosts; give --hosts"),
        ("--sweep bandwidth=1gbit,10gbit", "8 ranks on one host never use the link between hosts"),
        ("--sweep latency=50us,5ms", "8 ranks on one host never use the link between hosts"),
        ("--algorithm magic", "unknown algorithm `magic`"),
        ("--algorithm powersgd(rank=0)", "rank of powersgd is 0"),
        ("--algorithm ,", "--algorithm is empty"),
        ("--algorithm d-psgd(graph=hypercube) --ranks 3", "3 ranks do not form a hypercube"),
        ("--algorithm d-psgd --overlap forward", "a step of d-psgd cannot be communicated during"),
        ("--algorithm qadam --optimizer adam", "adam does not fit qadam"),
        ("--optimizer magic", "unknown optimizer `magic`"),
        ("--sweep latency=5ms,50", "`50` is not a value of latency"),
        ("--sweep speed=1", "unknown property `speed`; write bandwidth="),
        ("--straggler 8:2", "--straggler 8:2 does not match 8 ranks"),
        ("--straggler 1:0", "write a rank or a range of them and a factor up to 1e6, as in 3:2.5"),
        ("--straggler 7:2 --sweep ranks=8,4", "--straggler 7:2 does not match 4 ranks"),
        ("--trace /does/not/exist/trace --algorithm qadam", "/does/not/exist/trace"),
        ("--trace trace --algorithm qadam,dgc", "--trace needs one algorithm, and 2 are chosen"),
        ("--compute -3", "--compute -3 is not a valid time of a step; give milliseconds, up to 1e9"),
        ("--compute 1e21", "is not a valid time of a step; give milliseconds, up to 1e9"),
        ("--straggler 0:1e30", "write a rank or a range of them and a factor up to 1e6"),
        ("--straggler 0:1e6 --compute 1e9", "a rank computes for 2.2e13 s, and virtual time is for 1e9 s"),
    ] {
        let Ended { code, stdout, stderr } = simulate("wrong", arguments);
        let [line] = &stderr[..] else { panic!("{arguments}: {stderr:#?}") };
        let wrong = if arguments.contains("/does/not") { 1 } else { 2 };
        assert_eq!((code, stdout.len()), (Some(wrong), 0), "{arguments}: {line}");
        assert!(line.starts_with("hexagram simulate: ") && line.contains(word), "{arguments}: {line}");
    }
}

#[test]
fn a_value_of_another_unit_is_refused_with_one_that_is_right() {
    for arguments in [
        "--link 10gbit,50",
        "--link 10,50us",
        "--link 50us,10gbit",
        "--intra 10gbit",
        "--shape fat-tree",
        "--steps 0",
    ] {
        let Ended { code, stdout, stderr } = simulate("unit", arguments);
        assert_eq!((code, stdout.len()), (Some(2), 0), "{arguments}: {stderr:#?}");
        let value = arguments.split(' ').next_back().unwrap();
        assert!(stderr[0].contains(&format!("'{value}'")), "{arguments}: {stderr:#?}");
        let right = match value {
            "0" => "1..=",
            "fat-tree" => "fat-tree PORTS",
            _ => "as in 10gbit,50us",
        };
        assert!(stderr[0].contains(right), "{arguments}: {stderr:#?}");
    }
}

#[test]
fn paces_vary_by_seed_and_the_slowest_rank_is_what_others_wait_for() {
    let of = |arguments: &str| {
        let object =
            object("paces", &format!("--algorithm gradient-allreduce --hosts 8 --steps 6 {arguments}"));
        [figures(&object, "step_s")[0], figures(&object, "comm_fraction")[0]]
    };
    let even = of("");
    // All passes of two ranks take twice 9 ms.
    assert!(of("--straggler 2-3:2")[0] > even[0] + 0.008);
    let jitter = of("--compute-jitter 50%");
    assert!(jitter[0] > even[0] + 0.001 && jitter[1] > even[1], "{jitter:?} {even:?}");
    assert_eq!(jitter, of("--compute-jitter 0.5"));
    assert_ne!(jitter, of("--compute-jitter 50% --seed 1"));
    assert_ne!(jitter, of("--compute-jitter normal:50%"));
    assert!(of("--compute-drift 50%:20")[0] > even[0] + 0.001);
}

#[test]
fn steps_that_repeat_themselves_are_not_simulated_again_unless_they_may_differ() {
    let of = |arguments: &str| {
        let object =
            object("repeats", &format!("--algorithm gradient-allreduce --hosts 8 --steps 9 {arguments}"));
        (figures(&object, "simulated_steps")[0], figures(&object, "step_s")[0])
    };
    let (some, short) = of("");
    let (all, long) = of("--all-steps");
    assert!(some < 9.0 && all == 9.0, "{some} of {all}");
    assert!((short - long).abs() < 2e-3 * long, "{short} in place of {long}");
    for drawn in ["--compute-drift 10%:200", "--compute-jitter 0.01%", "--link 10gbit,50us,stall=0.0001:1ms"]
    {
        assert_eq!(of(drawn).0, 9.0, "{drawn}");
    }
    let warms_up = object("repeats", "--algorithm qadam(warmup=5) --from-start --hosts 8 --steps 9");
    assert_eq!(figures(&warms_up, "simulated_steps"), [9.0]);
}

#[test]
fn the_timeline_of_the_ranks_is_left_in_the_format_of_real_ones() {
    let folder = folder("trace-files");
    let trace = |name: &str| {
        let file = folder.join(name);
        let arguments = "--algorithm bytegrad --ranks 4 --hosts 2 --straggler 1:2 --steps 3";
        let printed = printed("trace", &format!("{arguments} --trace {}", file.display()));
        assert_eq!(printed, self::printed("trace", arguments), "tracing changes no figure");
        fs::read_to_string(file).unwrap()
    };
    let text = trace("one");
    assert_eq!(text, trace("two"));
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&trace["otherData"]["algorithm"], &trace["otherData"]["ranks"]),
        (&"bytegrad".into(), &4.into())
    );
    let events = trace["traceEvents"].as_array().unwrap();
    let computed = |rank: u64| -> f64 {
        let of_rank = events.iter().filter(|event| event["pid"] == rank);
        let passes =
            of_rank.filter(|event| ["forward", "backward"].iter().any(|name| event["name"] == *name));
        passes.filter_map(|event| event["dur"].as_f64()).sum()
    };
    // Three steps of 9 ms, and twice that, in microseconds.
    assert!((computed(0) - 27_000.0).abs() < 1_000.0, "{}", computed(0));
    assert!((computed(1) - 54_000.0).abs() < 1_000.0, "{}", computed(1));
}

#[test]
fn a_folder_gets_the_table_the_object_and_pictures_of_what_is_swept() {
    let folder = folder("out").join("deep");
    let arguments =
        "--algorithm gradient-allreduce,qadam --ranks 4 --hosts 4 --sweep bandwidth=100mbit,1gbit";
    let table = printed("out-model", &format!("{arguments} --out {}", folder.display()));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(read("table.md").lines().collect::<Vec<_>>(), table);
    let results: Value = serde_json::from_str(&read("results.json")).unwrap();
    assert_eq!(results, object("out-model", arguments));
    for (name, words) in [
        ("step.svg", "Time of a step"),
        ("throughput.svg", "batches a second"),
        ("bytes.svg", "other hosts"),
        ("communication.svg", "Exposed communication"),
    ] {
        let picture = read(name);
        assert!(picture.starts_with("<svg") && picture.contains(words), "{name}");
        assert!(picture.contains("bandwidth in Mbit/s") && picture.contains(">qadam(warmup=1)<"), "{name}");
        assert_eq!(picture.matches("<polyline").count(), 4, "{name}: two lines, and as many in the key");
    }
    let refused = simulate("out-model", "--out /dev/null/folder");
    assert_eq!((refused.code, refused.stdout.len(), refused.stderr.len()), (Some(1), 0, 1));
}

#[test]
fn help_on_an_algorithm_is_printed_instead() {
    let said = printed("help", "--algorithm help:bytegrad").join("\n");
    assert!(said.contains("bytegrad") && said.contains("Gan"), "{said}");
}
