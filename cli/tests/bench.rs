//! `hexagram bench` with real processes, under every launcher that is here.

use crate::harness::{Ended, by_rank, folder, hexagram, program, run};
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, pipe};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

const OPERATIONS: [&str; 6] =
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"];

/// The words of each row.
fn rows(stdout: &[String]) -> Vec<Vec<&str>> {
    let rows = stdout.iter().filter(|line| !line.contains('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

fn well(ended: &Ended) {
    // A busy machine may warn, for example about a repeated connection.
    let said: Vec<_> = ended.stderr.iter().filter(|line| !line.contains(" WARN ")).collect();
    assert!(ended.code == Some(0) && said.is_empty(), "{:#?} {:#?}", ended.stdout, ended.stderr);
}

#[test]
fn every_operation_over_every_transport_is_right() {
    for operation in OPERATIONS {
        for transport in ["thread", "shm", "tcp", "mixed"] {
            let mut command = program(&["bench", operation, "--transport", transport, "--ranks", "3"]);
            command.args(["-b", "16", "-e", "300K", "-f", "50", "--iters", "2", "--warmup", "1"]);
            let ended = run(command);
            well(&ended);
            let rows = rows(&ended.stdout);
            let sizes: Vec<_> = rows.iter().map(|row| (row[0], *row.last().unwrap())).collect();
            // Rounded down to a multiple of three ranks, if they divide it.
            let whole = ["all_reduce", "broadcast", "send_recv"].contains(&operation);
            let expected = if whole { ["16", "800", "40000"] } else { ["12", "792", "39996"] };
            assert_eq!(sizes, expected.map(|size| (size, "0")), "{operation} over {transport}");
        }
    }
}

#[test]
fn every_type_and_reduction_is_right() {
    let folder = folder("types");
    for dtype in ["u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "bool"] {
        for reduce in ["sum", "mean", "min", "max", "product", "band", "bor", "bxor"] {
            let file = folder.join(format!("{dtype}-{reduce}.json"));
            let mut command = program(&["bench", "all_reduce", "--transport", "thread", "--ranks", "4"]);
            command.args([
                "-d",
                dtype,
                "-o",
                reduce,
                "-b",
                "1000",
                "-e",
                "1000",
                "--iters",
                "1",
                "--registered",
            ]);
            let ended = run({
                command.arg("--json").arg(&file);
                command
            });
            let is_bitwise = reduce.starts_with('b');
            if dtype.contains('f') && is_bitwise || !dtype.contains('f') && reduce == "mean" {
                assert_eq!(ended.code, Some(2), "{dtype} {reduce}");
                let what = format!("{reduce} is undefined for {dtype}");
                assert!(ended.stderr[0].contains(&what), "{:?}", ended.stderr);
                continue;
            }
            well(&ended);
            let list: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            let row = &list[0];
            assert_eq!(list.as_array().unwrap().len(), 1);
            for (name, value) in
                [("op", "all_reduce"), ("transport", "thread"), ("dtype", dtype), ("redop", reduce)]
            {
                assert_eq!(row[name], value);
            }
            assert_eq!((&row["ranks"], &row["bytes"], &row["wrong"]), (&4.into(), &1000.into(), &0.into()));
            assert_eq!(row["registered"], true);
            let number = |name: &str| row[name].as_f64().unwrap();
            assert!(number("p10_us") <= number("time_us") && number("time_us") <= number("p90_us"));
            assert!(number("p90_us") <= number("p99_us"));
            let algorithm = 1000.0 / number("time_us") / 1e3;
            assert!((number("algbw_gbs") / algorithm - 1.0).abs() < 1e-9);
            assert!((number("busbw_gbs") / algorithm - 1.5).abs() < 1e-9);
        }
    }
    // The files themselves, and nothing that was only on the way to them.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 10 * 4 + 4 + 6 * 3);
}

#[test]
fn every_codec_is_right_and_named() {
    let file = folder("codecs").join("rows.json");
    for codec in hexagram::codec::names().into_iter().chain(["qsgd(levels=15)", "top-k(5%)"]) {
        let full = hexagram::codec::named(codec).unwrap().name();
        for transport in ["thread", "tcp"] {
            let mut command = program(&["bench", "all_reduce", "--codec", codec, "--transport", transport]);
            command.args(["--ranks", "3", "-b", "20", "-e", "300K", "-f", "100", "--iters", "2"]);
            command.args(["--back-to-back", "--json"]).arg(&file);
            let ended = run(command);
            well(&ended);
            let rows = rows(&ended.stdout);
            let wrong: Vec<_> = rows.iter().map(|row| (row[3], *row.last().unwrap())).collect();
            assert_eq!(wrong, [("mean", "0"); 3], "{codec} over {transport}");
            assert!(ended.stdout[0].contains(codec), "{:?}", ended.stdout);
            let list: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            assert_eq!(list[0]["codec"], full);
        }
    }
}

#[test]
fn our_launcher_gives_the_ranks() {
    let bench = ["--", env!("CARGO_BIN_EXE_hexagram"), "bench", "all_reduce", "-b", "8", "-e", "8"];
    let mut command = hexagram(&["-n", "2"]);
    command.args(bench);
    let ended = run(command);
    well(&ended);
    let said = by_rank(&ended.stdout);
    assert!(said.keys().eq(&[0]) && said[&0].len() == 4, "{said:?}");

    let mut command = hexagram(&["-n", "2"]);
    command.args(bench).args(["--ranks", "3"]);
    let ended = run(command);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr[0].contains("--ranks is 3, but the launcher has started 2"), "{:?}", ended.stderr);
}

#[test]
fn mpirun_gives_the_ranks() {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", "3", env!("CARGO_BIN_EXE_hexagram")]);
    command.args(["bench", "all_gather", "-b", "600", "-e", "600", "--ranks", "3"]);
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    match Command::new("mpirun").arg("--version").stdout(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return eprintln!("mpirun is not here: nothing tested");
        }
        found => assert!(found.unwrap().success()),
    }
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let rows = rows(&ended.stdout);
    assert_eq!((rows.len(), rows[0][0], rows[0][1], rows[0][8]), (1, "600", "50", "0"), "{rows:?}");
}

#[test]
fn calls_that_cannot_work_are_one_line_from_one_process() {
    let folder = folder("refused");
    let missing = folder.join("missing").join("rows.json");
    // In a build with CUDA, a missing driver is not a wrong call.
    #[cfg(feature = "cuda")]
    let gpu = if hexagram::cuda::devices().is_err() { (1, "libcuda.so.1") } else { (2, "CUDA") };
    #[cfg(not(feature = "cuda"))]
    let gpu = (2, "CUDA");
    for (arguments, code, what) in [
        (vec!["-b", "2K", "-e", "1K"], 2, "choose -b at most -e"),
        (vec!["-b", "0", "-e", "1K"], 2, "-b 0 times -f 4 never reaches -e"),
        (vec!["--codec", "f16", "-o", "sum"], 2, "--codec needs all_reduce with -d f32 and -o mean"),
        (vec!["--codec", "f16", "-d", "f64"], 2, "--codec needs all_reduce with -d f32 and -o mean"),
        (vec!["--ranks", "0"], 2, "0 ranks"),
        (vec!["--ranks", "0", "--transport", "thread"], 2, "0 ranks"),
        (vec!["--ranks", "100000", "--transport", "thread"], 2, "use 1 to 1024 ranks"),
        (vec!["--device", "cuda:99"], gpu.0, gpu.1),
        (vec!["--json", missing.to_str().unwrap()], 1, "rows.json"),
        (vec!["--json", folder.to_str().unwrap()], 1, "existing, writable folder"),
    ] {
        let mut command = program(&["bench", "all_reduce"]);
        command.args(&arguments);
        let ended = run(command);
        assert_eq!((ended.code, ended.stdout.len(), ended.stderr.len()), (Some(code), 0, 1), "{arguments:?}");
        assert!(
            ended.stderr[0].starts_with("hexagram bench: ") && ended.stderr[0].contains(what),
            "{:?}",
            ended.stderr
        );
    }
    for arguments in [
        ["-b", "1X"],
        ["-f", "1"],
        ["-d", "f8"],
        ["-o", "xor"],
        ["--transport", "pigeon"],
        ["--iters", "0"],
        ["--codec", "zip"],
        ["--device", "gpu"],
    ] {
        let mut command = program(&["bench", "all_reduce"]);
        command.args(arguments);
        let ended = run(command);
        assert_eq!(ended.code, Some(2));
        assert!(ended.stderr[0].contains(arguments[1]), "{:?}", ended.stderr);
    }
}

#[test]
fn what_is_no_file_is_written_to_and_not_replaced() {
    let folder = folder("streams");
    let file = folder.join("rows.json");
    let link = folder.join("link");
    let device = folder.join("null");
    fs::write(&file, "older").unwrap();
    symlink(&file, &link).unwrap();
    // A link, because tests must not risk the device itself.
    symlink("/dev/null", &device).unwrap();
    let bench = |path: &str| {
        let mut command =
            program(&["bench", "broadcast", "--transport", "thread", "-e", "8", "--iters", "1"]);
        command.args(["--json", path]);
        let ended = run(command);
        well(&ended);
        ended.stdout
    };
    bench(link.to_str().unwrap());
    bench(device.to_str().unwrap());
    assert!([&link, &device].iter().all(|path| path.is_symlink()));
    let list: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(list[0]["op"], "broadcast");
    let said = bench("/dev/stdout");
    let list: Value = serde_json::from_str(&said[4..].concat()).unwrap();
    assert_eq!(list[0]["op"], "broadcast");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
}

#[test]
fn warnings_that_nobody_reads_end_nothing() {
    // A variable of a set that is not complete is a warning.
    let mut command = program(&["bench", "broadcast", "--transport", "thread", "-e", "8", "--iters", "1"]);
    let (unread, closed) = pipe().unwrap();
    drop(unread);
    let ended = command.env("RANK", "0").stderr(closed).output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(ended.stdout.iter().filter(|byte| **byte == b'\n').count(), 4);
}

#[test]
#[cfg(feature = "cuda")]
fn a_device_is_named_with_the_path_of_its_messages() {
    if !hexagram::cuda::devices().is_ok_and(|devices| !devices.is_empty()) {
        eprintln!("skipped: no CUDA device");
        return;
    }
    let mut command =
        program(&["bench", "all_reduce", "--device", "cuda:0", "-b", "1K", "-e", "1K", "--iters", "3"]);
    command.envs([("HEXAGRAM_DEVICE_PATH", "staging"), ("HEXAGRAM_FAKE_CUDA", "seed=0")]);
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{:#?}", ended.stderr);
    assert_eq!(ended.stdout[0], "# all_reduce: 2 ranks, mixed, cuda:0, staged");
}
