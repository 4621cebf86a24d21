//! Every algorithm by its text: it prints as that text, and every invalid option is refused in one line, from text and
//! from code.

use hexagram_algorithms::deepsqueeze::DeepSqueeze;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::Result;
use hexagram_algorithms::logical::codec::{self, Codec, CodecError, Properties, Sign};
use hexagram_algorithms::logical::decentralized::{self, Mixing, Schedule, Topology};
use hexagram_algorithms::logical::options_text::{Catalogue, Catalogues, NamedOptions, Options, OptionsText};
use hexagram_algorithms::{AnyAlgorithm, LearningRate, Registry, optimizer, registry};
use std::sync::Arc;

#[allow(clippy::unwrap_used, reason = "a test")]
fn line(text: &str) -> String {
    let error = registry::named(text).map(|found| found.to_string()).unwrap_err().to_string();
    assert!(!error.contains('\n') && error.len() < 900, "{text}: {error}");
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
        "muloco(codec=top-k(10%), feedback=error(decay=0.9))",
        "sparse-loco(codec=top-k(5%, chunk=64), feedback=error(decay=0.5))",
        "compressed-allreduce(codec=sign, feedback=two-level)",
        "compressed-allreduce(codec=low-rank(rank=4, saving=2), feedback=error)",
        "relaysgd(tree=binary)",
        "qadam(warmup=7, beta1=0.8, clip=3, scaled=true)",
        "qadam-8bit(floor=0, block=64)",
        "zero-one-adam(freeze=9, local_largest=2, epsilon=1e-6)",
        "signsgd-vote(momentum=0)",
        "local-sgd(codec=sign, feedback=error)",
        "post-local-sgd(start=3, codec=bf16)",
        "diloco(codec=low-rank(rank=4, saving=2), feedback=error)",
        "easgd(codec=top-k(5%), feedback=difference)",
        "slowmo(codec=f16, base=sgp(graph=ring))",
        "slowmo(base=compressed-allreduce(codec=sign, feedback=error))",
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

#[test]
fn every_algorithm_says_where_it_is_from() {
    for algorithm in registry::all() {
        assert!(!algorithm.source().is_empty(), "{algorithm}");
    }
}

#[test]
fn a_base_is_of_the_registry_that_reads_it() {
    let ours = Registry::built_in().with(LocalSgd { period: 9, ..LocalSgd::default() });
    let full = format!("{:#}", ours.named("slowmo(base=local-sgd)").unwrap());
    assert!(full.contains("base=local-sgd(period=9"), "{full}");
    assert_eq!(
        line("slowmo(base=qadam(block=0))"),
        "base of slowmo is qadam(block=0): block of qadam is 0; choose a whole number, 1 or more"
    );
    assert_eq!(
        line("slowmo(base=spg)"),
        "base of slowmo is spg: unknown algorithm `spg`; did you mean sgp or ssp?"
    );
    for refused in ["ssp", "slowmo", "diloco(period=3)"] {
        let error = line(&format!("slowmo(base={refused})"));
        let name = refused.split('(').next().unwrap();
        assert!(error.starts_with(&format!("base of slowmo is {name}(")), "{error}");
        assert!(error.contains("a synchronous algorithm that remembers no parameters"), "{error}");
    }
}

fn says_what_to_choose(error: &str) -> bool {
    ["; choose ", "; use ", "; did you mean "].iter().any(|words| error.contains(words))
}

/// Fails unless every invalid value of every option in a catalogue is refused in one line, which names the option, the
/// value and the valid values. `refusal` returns the error of a text.
fn refuses_all<T: 'static>(catalogue: &Catalogue<T>, refusal: impl Fn(&str) -> String) -> usize {
    let mut fields = 0;
    for (name, _) in catalogue.names() {
        for field in catalogue.help(name, &Catalogues::default()).unwrap() {
            fields += 1;
            for value in outside(&field.range) {
                let error = refusal(&format!("{name}({}={value})", field.name));
                assert!(error.contains(&format!("{} of {name} is {value}", field.name)), "{error}");
                assert!(says_what_to_choose(&error), "{error}");
                assert!(!error.contains('\n') && error.len() < 900, "{error}");
            }
        }
        let error = refusal(&format!("{name}(no_such_thing=1)"));
        let nothing = error.contains(&format!("{name} has no options, and `no_such_thing=1` is one"));
        assert!(nothing || error.contains(&format!("unknown option of {name} `no_such_thing`")), "{error}");
    }
    fields
}

#[test]
fn every_wrong_value_of_codecs_graphs_optimizers_and_schedules_names_field_and_value() {
    let codecs = refuses_all(&codec::catalogue(), |text| line(&format!("choco-sgd(codec={text})")));
    let graphs = refuses_all(&decentralized::catalogue(), |text| line(&format!("choco-sgd(graph={text})")));
    let optimizer = |text: &str| optimizer::named(text).unwrap_err().to_string();
    let optimizers = refuses_all(&optimizer::catalogue(), optimizer);
    let schedules = LearningRate::catalogue(0.1, 100);
    let schedule = |text: &str| schedules.named(text).unwrap_err().to_string();
    let schedules = refuses_all(&schedules, schedule);
    assert!(
        codecs > 10 && graphs > 5 && optimizers > 20 && schedules > 5,
        "{codecs} {graphs} {optimizers} {schedules}"
    );
}

#[test]
fn a_slip_of_the_word_for_nothing_is_not_taken_for_a_name() {
    for text in ["ssp(codec=non)", "slowmo(base=nnone)"] {
        let error = line(text);
        assert!(error.contains("; choose none, or "), "{error}");
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
                assert!(says_what_to_choose(&error), "{error}");
            }
        }
        assert!(line(&format!("{name}(no_such_thing=1)")).contains(name));
    }
    assert!(fields > 100, "{fields}");
}

/// Codec of a user: the sign, under another name.
#[derive(Debug, Clone)]
struct Ours(Sign);

impl NamedOptions for Ours {
    fn keyword(&self) -> &'static str {
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

    fn check_options(&self) -> Result<()> {
        self.check()
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

/// Schedule of a user.
#[derive(Debug, Clone)]
struct Twice {
    steps: u64,
}

impl NamedOptions for Twice {
    fn keyword(&self) -> &'static str {
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

    fn spelling(&self) -> OptionsText {
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
    let codec = Arc::new(Ours(Sign::in_blocks(0)));
    let error =
        AnyAlgorithm::from(DeepSqueeze { codec, ..DeepSqueeze::default() }).check().unwrap_err().to_string();
    assert!(error.ends_with("block of ours is 0; choose whole, or a whole number, 1 or more"), "{error}");
    // An unregistered schedule prints its contents.
    let own = Arc::new(vec![Topology::Ring.mixing(2, 0).unwrap()]);
    let printed = AnyAlgorithm::from(hexagram_algorithms::sgp::Sgp { schedule: own.clone() }).to_string();
    assert_eq!(printed, format!("sgp(graph={own:?})"));
}
