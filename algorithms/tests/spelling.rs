//! Every algorithm by its text: it is what it prints, and every wrong option is refused in one line, from text and from
//! code.

use hexagram_algorithms::logical::codec::{Codec, CodecError, Properties, Sign};
use hexagram_algorithms::logical::decentralized::{Mixing, Schedule, Topology};
use hexagram_algorithms::logical::spelling::{Options, Spelled, Spelling};
use hexagram_algorithms::logical::{Result, TransportKind, testing::spawn};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, Registry, registry};
use std::sync::Arc;

#[allow(clippy::unwrap_used, reason = "a test")]
fn line(text: &str) -> String {
    let error = registry::named(text).map(|found| found.to_string()).unwrap_err().to_string();
    assert!(!error.contains('\n') && error.len() < 500, "{text}: {error}");
    error
}

#[test]
fn every_algorithm_is_what_it_prints() {
    for algorithm in registry::all() {
        assert_eq!(algorithm.to_string(), algorithm.name());
        for text in [algorithm.to_string(), format!("{algorithm:#}")] {
            let found = registry::named(&text).unwrap();
            assert_eq!(format!("{found:?}"), format!("{algorithm:?}"), "{text}");
        }
        algorithm.check().unwrap();
    }
}

#[test]
fn options_that_are_typed_are_printed() {
    for text in [
        "choco-sgd(codec=top-k(5%), graph=torus, consensus=auto)",
        "d-psgd(graph=all, interval=3)",
        "d-psgd(graph=exponential, codec=sign(block=512), consensus=0.3)",
        "decentralized(graph=random-pairs(seed=7))",
        "diloco(period=9, outer=nesterov(learning_rate=0.5, momentum=0.9))",
        "streaming-diloco(precision=4bit)",
        "compressed-allreduce(codec=sign, feedback=two-level)",
        "compressed-allreduce(codec=low-rank(rank=4, saving=2), feedback=error)",
        "relaysgd(tree=binary)",
    ] {
        let algorithm = registry::named(text).unwrap();
        let printed = algorithm.to_string();
        let again = registry::named(&printed).unwrap();
        assert_eq!(format!("{again:?}"), format!("{algorithm:?}"), "{text} prints {printed}");
        if !text.contains("tree") {
            assert_eq!(printed, text);
        }
    }
}

/// Returns values that are outside of a range.
fn outside(range: &str) -> Vec<&'static str> {
    let mut wrong = vec!["wrong!", "wrong(1)"];
    for (words, values) in [
        (", 1 or more", &["0", "-1"][..]),
        (", 0 or more", &["-1"]),
        (", above 0", &["0", "-0.5"]),
        (", below 1", &["1", "1.5"]),
        (", 1 at most", &["1.5"]),
        ("a number", &["NaN", "inf", "1e999"]),
        ("a whole number", &["0.5", "99999999999999999999"]),
    ] {
        wrong.extend(if range.contains(words) { values } else { &[] });
    }
    wrong
}

#[test]
fn every_wrong_value_of_every_field_names_field_and_value() {
    let registry = Registry::built_in();
    let mut fields = 0;
    for algorithm in registry.all() {
        let name = algorithm.name();
        for field in registry.help(name).unwrap().fields {
            fields += 1;
            assert!(!field.about.is_empty() && !field.range.is_empty(), "{name}: {}", field.name);
            for value in outside(&field.range) {
                let error = line(&format!("{name}({}={value})", field.name));
                assert!(error.starts_with(&format!("{} of {name} is {value}", field.name)), "{error}");
                assert!(
                    error.contains("; choose ") || error.contains("; use ") || error.contains("; did you"),
                    "{error}"
                );
            }
        }
        assert!(line(&format!("{name}(no_such_thing=1)")).contains(name));
    }
    assert!(fields > 60, "{fields}");
}

#[test]
fn wrong_options_from_code_are_refused_alike() {
    use hexagram_algorithms::{choco_sgd, dgc, diloco, easgd, local_sgd, powersgd, slowmo, streaming_diloco};
    let outer = diloco::Outer { learning_rate: 0.0, momentum: 0.9 };
    let cases: Vec<(AnyAlgorithm, &str)> = vec![
        (
            local_sgd::LocalSgd { period: 0, ..Default::default() }.into(),
            "period of local-sgd is 0; choose a whole number, 1 or more",
        ),
        (
            slowmo::SlowMo { slow_rate: f64::NAN, ..Default::default() }.into(),
            "slow_rate of slowmo is NaN; choose a number, above 0",
        ),
        (
            choco_sgd::ChocoSgd { consensus: Some(2.0), ..Default::default() }.into(),
            "consensus of choco-sgd is 2; choose auto, or a number, above 0, 1 at most",
        ),
        (
            dgc::Dgc { fraction: 0.0, ..Default::default() }.into(),
            "fraction of dgc is 0; choose a number, above 0, 1 at most",
        ),
        (
            easgd::Easgd { momentum: 1.0, ..Default::default() }.into(),
            "momentum of easgd is 1; choose a number, 0 or more, below 1",
        ),
        (
            powersgd::PowerSgd { saving: f64::INFINITY, ..Default::default() }.into(),
            "saving of powersgd is inf; choose a number, 1 or more",
        ),
        (
            diloco::DiLoCo { outer, ..Default::default() }.into(),
            "outer of diloco is nesterov(learning_rate=0, momentum=0.9): learning_rate of nesterov is 0; choose a number, above 0",
        ),
        (
            streaming_diloco::StreamingDiLoCo { delay: 16, ..Default::default() }.into(),
            "delay of streaming-diloco is 16; choose fewer steps than the period has",
        ),
    ];
    for (algorithm, words) in cases {
        assert_eq!(algorithm.check().unwrap_err().to_string(), words);
        let refused = spawn(TransportKind::Thread, 2, |comm| {
            let made = Trainer::new(&comm, algorithm.clone(), Setup::default(), &[vec![1.0f32; 4]]);
            Ok(made.err().map(|error| error.to_string()))
        });
        assert_eq!(refused.unwrap(), [Some(words.to_owned()), Some(words.to_owned())]);
    }
}

/// Codec of a user's own: the sign, under another name.
#[derive(Debug, Clone)]
struct Ours(Sign);

impl Spelled for Ours {
    fn word(&self) -> &'static str {
        "ours"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.0.options(options)
    }
}

impl Codec for Ours {
    fn name(&self) -> String {
        self.full().to_string()
    }

    fn properties(&self) -> Properties {
        self.0.properties()
    }

    fn encoded_len(&self, len: usize) -> usize {
        self.0.encoded_len(len)
    }

    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        self.0.encode(from, to, seed)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        self.0.decode_add(from, weight, to)
    }
}

/// Schedule of a user's own.
#[derive(Debug, Clone)]
struct Twice {
    steps: u64,
}

impl Spelled for Twice {
    fn word(&self) -> &'static str {
        "twice"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("steps", &mut self.steps, 1.., "steps of each graph")
    }
}

impl Schedule for Twice {
    fn mixing(&self, size: usize, step: u64) -> Result<Mixing> {
        Topology::OnePeerExponential.mixing(size, step / self.steps.max(1))
    }

    fn spelling(&self) -> Spelling {
        self.full()
    }
}

#[test]
fn codecs_and_graphs_of_a_users_own_are_typed_once_they_are_registered() {
    let registry = Registry::built_in();
    registry.named("d-psgd(graph=twice(steps=3))").unwrap_err();
    let registry = registry
        .with_codec(Ours(Sign::default()), "the sign")
        .with_graph(Twice { steps: 2 }, "every graph twice");
    let text = "deepsqueeze(codec=ours(block=64, not_finite=refuse), graph=twice(steps=3))";
    let found = registry.named(text).unwrap();
    assert_eq!(registry.short(&found).to_string(), text);
    // Unregistered, a schedule prints what it is.
    let own = Arc::new(vec![Topology::Ring.mixing(2, 0).unwrap()]);
    let printed = AnyAlgorithm::from(hexagram_algorithms::sgp::Sgp { schedule: own.clone() }).to_string();
    assert_eq!(printed, format!("sgp(graph={own:?})"));
}
