//! `hexagram step` with real processes: its output, its counts of bytes, and its errors.

use crate::harness::{folder, program, run};
use std::fs;

/// A model of so few seconds that only its parameters count: 40 000 elements.
fn profile(name: &str) -> String {
    let file = folder(name).join("profile");
    fs::write(&file, "# name shapes forward backward\nfirst 200x100,100 0 0.001\nsecond 199x100 0.0005 0\n")
        .unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_step_sends_what_its_algorithm_says() {
    let profile = profile("sends");
    // 2 (n − 1)/n · 160 000 bytes, and little more, in headers.
    for (algorithm, least, most) in [
        (&["none"][..], 0, 0),
        (&["gradient-allreduce"], 160_000, 161_000),
        (&["gradient-allreduce", "--overlap", "forward"], 160_000, 161_000),
        (&["gradient-allreduce", "--accelerator"], 160_000, 161_000),
        (&["local-sgd(period=8)"], 20_000, 21_000),
        (&["local-sgd(period=2)"], 80_000, 81_000),
    ] {
        for transport in ["thread", "tcp"] {
            let mut command = program(&["step", "--transport", transport, "--profile", &profile]);
            command.args(["--warmup", "4", "--steps", "8", "--algorithm"]).args(algorithm);
            let ended = run(command);
            assert_eq!(ended.code, Some(0), "{:#?}", ended.stderr);
            let [line] = &ended.stdout[..] else { panic!("{:#?}", ended.stdout) };
            assert!(
                line.starts_with(&format!("{} on 2 ranks over {transport}: step ", algorithm[0])),
                "{line}"
            );
            let bytes: u64 =
                line.split(" bytes").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            assert!((least..=most).contains(&bytes), "{line}");
        }
    }
}

#[test]
fn a_wrong_call_is_refused_before_any_rank_starts() {
    let nowhere = "--profile=/does/not/exist";
    for (arguments, word) in [
        (["--algorithm", "magic"], "`magic`"),
        (["--algorithm=demo", "--optimizer=adam"], "adam does not fit demo, since"),
        (["--algorithm=d-psgd(graph=hypercube)", "--ranks=3"], "3 ranks do not form a hypercube"),
        (["--algorithm", "dgc(fraction=2)"], "fraction of dgc is 2; choose a number, above 0, 1 at most"),
        (["--algorithm=local-sgd(period=0)", "--steps=1"], "period of local-sgd is 0"),
        (["--algorithm=d-psgd", "--overlap=forward"], "a step of d-psgd cannot be communicated during"),
        ([nowhere, "--steps=1"], "profile"),
        (["--profile=/dev/zero", "--steps=1"], "it is a pipe or a device, not a regular file"),
        (["--profile=/tmp", "--steps=1"], "it is a folder, not a file"),
    ] {
        let mut command = program(&["step"]);
        command.args(arguments);
        let ended = run(command);
        let said = ended.stderr.join("\n");
        assert!(ended.code != Some(0) && said.contains(word) && ended.stderr.len() == 1, "{said}");
    }
}

#[test]
fn help_on_an_algorithm_is_printed_instead() {
    let ended = run(program(&["step", "--algorithm", "help:choco-sgd"]));
    let said = ended.stdout.join("\n");
    assert!(ended.code == Some(0) && said.contains("Koloskova") && said.contains("graph=ring"), "{said}");
}
