//! The programs as functions of a registry, with an algorithm that is not built in.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use clap::Parser;
use hexagram::algorithms::{About, Algorithm, Bucket, Context, Registry, Trigram};
use hexagram::{Result, TransportKind, testing};
use hexagram_lab::program::{
    CompareOptions, SimulateOptions, StepOptions, SuiteOptions, TrainOptions, compare, console::ProgramError,
    simulate, step, suite, train,
};
use hexagram_lab::task::Quadratics;
use hexagram_lab::{Training, train_on};
use std::path::PathBuf;
use std::sync::Arc;

/// Mean of the gradients.
#[derive(Debug, Clone)]
struct Plain;

impl Algorithm for Plain {
    type State = ();

    fn about(&self) -> About {
        About::new("plain", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        context.mean(&mut bucket.gradients).await
    }
}

/// Training by it, as the suite records one.
const RECORD: &str = r#"{"algorithm":"plain","task":"digits","partition":"equal","ranks":4,"seed":0,"trigram":"☰",
"synchronous":true,"learning_rate":1.0,"own_loss":0.3,"distance":null,"curve":[[300,0.3,0.75,0.0,2.0,2,1]]}"#;

fn registry() -> Registry {
    Registry::built_in().with(Plain)
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hexagram-lab-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn real_ranks_make_the_steps_of_virtual_ones() {
    let training = |algorithm: &str| Training {
        algorithm: registry().named(algorithm).unwrap(),
        ranks: 3,
        steps: 20,
        ..Training::of(Arc::new(Quadratics::new(0).unwrap()))
    };
    for algorithm in ["plain", "d-psgd(graph=ring)"] {
        let expected = hexagram_lab::train(&training(algorithm)).unwrap();
        for transport in [TransportKind::Thread, TransportKind::Tcp] {
            let found = testing::spawn(transport, 3, |comm| train_on(&comm, &training(algorithm))).unwrap();
            let outcome = found[0].as_ref().unwrap();
            assert!(found[1..].iter().all(Option::is_none));
            assert_eq!(outcome.last().evaluation, expected.last().evaluation, "{algorithm} over {transport}");
            assert_eq!((&outcome.own, outcome.steps.len()), (&expected.own, 20));
        }
    }
}

#[test]
fn every_program_takes_an_algorithm_of_one_s_own_by_name() {
    let out = folder("own");
    let shown = out.to_str().unwrap();
    let words = ["train", "--algorithm=plain", "--task=quadratics", "--steps=4", "-n2", "--transport=thread"];
    let options = TrainOptions::try_parse_from([&words[..], &["--out", shown]].concat()).unwrap();
    assert_eq!(train(&registry(), &options).unwrap(), 0);
    let lines = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains(r#""event":"step""#)).count(), 4);

    let words = ["compare", "gradient-allreduce", "plain", "--task=quadratics", "--steps=4", "-n2"];
    let options = CompareOptions::try_parse_from([&words[..], &["--transport=thread"]].concat()).unwrap();
    assert_eq!(compare(&registry(), &options).unwrap(), 0);

    let words =
        ["simulate", "--algorithm=plain,bytegrad", "--train=quadratics", "--steps=4", "-n4", "--hosts=2"];
    let options = SimulateOptions::try_parse_from([&words[..], &["--straggler=1:2"]].concat()).unwrap();
    assert_eq!(simulate(&registry(), &options).unwrap(), 0);

    std::fs::write(out.join("profile"), "layer 8 0 0\n").unwrap();
    let profile = out.join("profile");
    let words =
        ["step", "--algorithm=plain", "--optimizer=adamw", "--steps=2", "--transport=thread", "--profile"];
    let options = StepOptions::try_parse_from([&words[..], &[profile.to_str().unwrap()]].concat()).unwrap();
    assert_eq!(step(&registry(), &options).unwrap(), 0);

    let records = out.join("suite.jsonl");
    let words = ["suite", "plain", "--short", "--docs", shown, "--records", records.to_str().unwrap()];
    let options = SuiteOptions::try_parse_from([&words[..], &["--judge"]].concat()).unwrap();
    let nothing = refused(suite(&registry(), &options).map(|()| 0));
    assert!(nothing.contains("has no records") && !out.join("which-algorithm.md").exists(), "{nothing}");
    std::fs::write(&records, RECORD.replace('\n', "")).unwrap();
    suite(&registry(), &options).unwrap();
    let page = std::fs::read_to_string(out.join("which-algorithm.md")).unwrap();
    assert!(
        page.contains("1 trainings of 1 algorithms") && page.contains("| `plain` | ☰ | 25.0 |"),
        "{page}"
    );
    assert!(!page.contains("Published orderings"));
    std::fs::remove_dir_all(out).unwrap();
}

fn refused(outcome: std::result::Result<u8, ProgramError>) -> String {
    let text = outcome.unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn what_is_wrong_is_said_once_before_any_rank_starts() {
    for (arguments, said) in [
        (&["--algorithm=plein"][..], "unknown algorithm `plein`; did you mean plain?"),
        (&["--algorithm=qadam(warmup=0)"], "warmup of qadam is 0; choose a whole number, 1 or more"),
        (&["--algorithm=help:plein"], "did you mean plain?"),
        (&["--algorithm=qadam", "--optimizer=adam"], "adam does not fit qadam, since"),
        (&["--algorithm=d-psgd(graph=hypercube)", "-n3"], "3 ranks do not form a hypercube"),
        (&["--optimizer=adamw(beta1=1)"], "beta1 of adamw is 1; choose a number, 0 or more, below 1"),
        (&["--schedule=cosine(base=2)"], "use --lr for the base"),
        (&["--lr=nan"], "--lr NaN is not a learning rate"),
        (&["--task=digit"], "did you mean digits?"),
        (&["--partition=dirichlet(0)"], "alpha of dirichlet is 0"),
        (&["--steps=0"], "a training of 0 steps is not possible; use 1 or more steps"),
        (&["-n0"], "a training of 0 ranks is not possible; use 1 or more ranks"),
        (&["--lr", "-1"], "--lr -1 is not a learning rate"),
        (&["--weight-decay", "-1"], "weight_decay of sgd is -1"),
        (&["-n2000"], "2000"),
    ] {
        let options = TrainOptions::try_parse_from([&["train"], arguments].concat()).unwrap();
        let text = refused(train(&registry(), &options));
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    for (arguments, said) in [
        (["--train=digit", "--steps=2"], "did you mean digits?"),
        (["--train=digits", "--overlap=forward"], "--train runs whole steps"),
        (["--train=digits", "--partition=dirichlet(0)"], "alpha of dirichlet is 0"),
        (["--train=digits", "--lr=0"], "--lr 0 is not a learning rate"),
        (["--train=digits", "--straggler=8:2"], "--straggler 8:2 does not match 8 ranks"),
        (["--faults=0", "--seed=1"], "--faults 0 tries no seed"),
        (
            ["--faults=1", "--algorithm=bytegrad,ssp"],
            "--faults needs synchronous algorithms, and ssp is asynchronous",
        ),
        (["--train=digits", "--hosts=3"], "8 ranks cannot be spread evenly over 3 hosts"),
    ] {
        let options = SimulateOptions::try_parse_from([&["simulate"], &arguments[..]].concat()).unwrap();
        let text = refused(simulate(&registry(), &options));
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    let options = StepOptions::try_parse_from(["step", "--algorithm=demo", "--optimizer=adam"]).unwrap();
    assert!(refused(step(&registry(), &options)).contains("adam does not fit demo"));
    let options = CompareOptions::try_parse_from(["compare", "plain", "qadam", "--optimizer=lion"]).unwrap();
    assert!(refused(compare(&registry(), &options)).contains("lion does not fit qadam"));
    let options = SuiteOptions::try_parse_from(["suite", "slowmo(period=3)"]).unwrap();
    assert!(
        refused(suite(&registry(), &options).map(|()| 0)).contains("names of algorithms without options")
    );
}
