//! Every number among the options of every algorithm, out of its range from code: refused at the start, in one line
//! that names option, value and range. What is typed is in `spelling.rs`.

use hexagram_algorithms::ad_psgd::AdPsgd;
use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::bytegrad::ByteGrad;
use hexagram_algorithms::choco_sgd::ChocoSgd;
use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::decentralized::Decentralized;
use hexagram_algorithms::deepsqueeze::DeepSqueeze;
use hexagram_algorithms::demo::DeMo;
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::diloco::{DiLoCo, Outer};
use hexagram_algorithms::dion::Dion;
use hexagram_algorithms::easgd::Easgd;
use hexagram_algorithms::ef21::Ef21;
use hexagram_algorithms::exact_diffusion::ExactDiffusion;
use hexagram_algorithms::extra::Extra;
use hexagram_algorithms::gossip::Gossip;
use hexagram_algorithms::gossip_pga::GossipPga;
use hexagram_algorithms::gradient_tracking::GradientTracking;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::loco::LoCo;
use hexagram_algorithms::logical::codec::{E3M0, Sign, TopK};
use hexagram_algorithms::logical::decentralized::{Lazy, Mixing, Schedule, Topology};
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::logical::{TransportKind, testing::spawn};
use hexagram_algorithms::low_precision_decentralized::LowPrecisionDecentralized;
use hexagram_algorithms::muloco::MuLoCo;
use hexagram_algorithms::noloco::NoLoCo;
use hexagram_algorithms::post_local_sgd::PostLocalSgd;
use hexagram_algorithms::powersgd::PowerSgd;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::qg_dsgdm::QgDsgdm;
use hexagram_algorithms::sgp::Sgp;
use hexagram_algorithms::signsgd_vote::SignSgdVote;
use hexagram_algorithms::slowmo::SlowMo;
use hexagram_algorithms::sparse_loco::SparseLoCo;
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::streaming_diloco::StreamingDiLoCo;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::topk_ef::TopKEf;
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{AnyAlgorithm, Averaging, Frozen, Moments, Registry};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Algorithm with one option out of its range, its name, and the value as it is printed.
type Case = (AnyAlgorithm, &'static str, &'static str);

/// Lists `$default` with each field set to each value.
macro_rules! wrong {
    ($cases:ident, $default:expr; $($field:ident $(. $inner:ident)? = $value:expr => $printed:literal),* $(,)?) => {$({
        let mut algorithm = $default;
        algorithm.$field $(. $inner)? = $value;
        #[allow(unused_mut, unused_assignments, reason = "the innermost name is the last")]
        let mut name = stringify!($field);
        $(name = stringify!($inner);)?
        $cases.push((algorithm.into(), name, $printed));
    })*};
}

const NAN: f64 = f64::NAN;
const INFINITE: f64 = f64::INFINITY;

fn centralized() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    wrong!(cases, ByteGrad::default(); block = 0 => "0");
    wrong!(cases, LoCo::default(); memory = 1.0 => "1", memory = -0.1 => "-0.1", reset = 0 => "0", block = 0 => "0");
    wrong!(cases, PowerSgd::default(); rank = 0 => "0", saving = 0.5 => "0.5", saving = INFINITE => "inf");
    wrong!(cases, Dion::default(); fraction = 0.0 => "0", momentum = 1.0 => "1", beta1 = NAN => "NaN", beta2 = -0.5 => "-0.5");
    wrong!(cases, TopKEf::default(); fraction = 0.0 => "0", fraction = NAN => "NaN");
    wrong!(cases, Dgc::default(); fraction = 1.5 => "1.5", momentum = 1.0 => "1", weight_decay = -1.0 => "-1");
    wrong!(cases, Ef21::default(); fraction = 0.0 => "0", momentum = NAN => "NaN");
    wrong!(cases, SignSgdVote::default(); momentum = 1.0 => "1", momentum = -0.1 => "-0.1", momentum = NAN => "NaN");
    wrong!(cases, DeMo::default(); decay = 1.5 => "1.5", keep = 0 => "0");
    cases
}

fn adams() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for algorithm in [QAdam::default(), QAdam::eight_bits()] {
        wrong!(cases, algorithm; warmup = 0 => "0", block = 0 => "0", moments.beta1 = 1.0 => "1",
            moments.beta2 = NAN => "NaN", moments.epsilon = 0.0 => "0", frozen.floor = -1.0 => "-1",
            frozen.floor = INFINITE => "inf", frozen.clip = Some(0.0) => "0", frozen.clip = Some(NAN) => "NaN");
    }
    let algorithm =
        ZeroOneAdam { moments: Moments::default(), frozen: Frozen::bounded(), ..ZeroOneAdam::default() };
    wrong!(cases, algorithm; freeze = 0 => "0", variance_doubling = 0 => "0", local_doubling = 0 => "0",
        local_largest = 0 => "0", block = 0 => "0", moments.beta1 = -0.5 => "-0.5", moments.beta2 = 1.0 => "1",
        moments.epsilon = INFINITE => "inf", frozen.floor = NAN => "NaN", frozen.clip = Some(INFINITE) => "inf");
    cases
}

fn in_periods() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    wrong!(cases, LocalSgd::default(); period = 0 => "0");
    wrong!(cases, PostLocalSgd::default(); period = 0 => "0");
    wrong!(cases, SlowMo::default(); period = 0 => "0", slow_rate = NAN => "NaN", slow_momentum = 1.0 => "1");
    wrong!(cases, DiLoCo::default(); period = 0 => "0");
    wrong!(cases, MuLoCo::default(); period = 0 => "0");
    wrong!(cases, SparseLoCo::default(); period = 0 => "0", learning_rate = 0.0 => "0", learning_rate = NAN => "NaN");
    wrong!(cases, StreamingDiLoCo::default(); period = 0 => "0", fragments = 0 => "0", own = 1.5 => "1.5");
    wrong!(cases, Easgd::default(); period = 0 => "0", beta = 0.0 => "0", momentum = 1.0 => "1");
    cases
}

fn decentralized() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    cases.push((Decentralized::new(Topology::Ring, 0).into(), "interval", "0"));
    wrong!(cases, LowPrecisionDecentralized::default(); interval = 0 => "0");
    wrong!(cases, DPsgd::default(); interval = 0 => "0", consensus = Some(2.0) => "2");
    wrong!(cases, GradientTracking::default(); gossip.consensus = Some(0.0) => "0");
    wrong!(cases, GossipPga::default(); gossip.consensus = Some(NAN) => "NaN", period = 0 => "0");
    wrong!(cases, NoLoCo::default(); period = 0 => "0", outer_rate = INFINITE => "inf", outer_momentum = 1.0 => "1", pull = 1.5 => "1.5");
    wrong!(cases, QgDsgdm::default(); gossip.consensus = Some(2.0) => "2", momentum = 1.0 => "1", decay = -0.1 => "-0.1");
    wrong!(cases, ChocoSgd::default(); consensus = Some(2.0) => "2", consensus = Some(0.0) => "0");
    wrong!(cases, DeepSqueeze::default(); consensus = 0.0 => "0", consensus = 1.5 => "1.5");
    cases
}

fn asynchronous() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for algorithm in [AsyncModelAverage::default(), AsyncModelAverage::compressed()] {
        wrong!(cases, algorithm.clone(); interval = -1.0 => "-1", interval = INFINITE => "inf", approach = 0.0 => "0");
    }
    for algorithm in [AdPsgd::default(), AdPsgd::compressed()] {
        wrong!(cases, algorithm.clone(); interval = 0 => "0");
    }
    cases
}

fn all() -> Vec<Case> {
    [centralized(), adams(), in_periods(), decentralized(), asynchronous()].concat()
}

#[test]
fn every_number_out_of_its_range_is_refused_with_field_value_and_range() {
    let registry = Registry::built_in();
    let mut covered = BTreeSet::new();
    for (algorithm, field, value) in all() {
        let name = algorithm.name();
        let help = registry.help(name).unwrap();
        let range = &help.fields.iter().find(|known| known.name == field).unwrap().range;
        let expected = format!("{field} of {name} is {value}; choose {range}");
        assert_eq!(algorithm.check().unwrap_err().to_string(), expected);
        covered.insert((name, field));
    }
    for algorithm in registry.all() {
        for field in registry.help(algorithm.name()).unwrap().fields {
            // Numbers that a field of an unsigned type cannot leave have no case.
            let free = field.range.starts_with("a whole number") && !field.range.contains("1 or more");
            if field.range.contains("number,") && !field.range.contains("codec") && !free {
                let known = covered.contains(&(algorithm.name(), field.name));
                assert!(known, "{} of {} has no case here", field.name, algorithm.name());
            }
        }
    }
}

#[test]
fn options_inside_of_options_are_refused_with_both_names() {
    let outer = Outer { learning_rate: 0.0, momentum: 0.9 };
    let wrong = AnyAlgorithm::from(DiLoCo { outer, ..DiLoCo::default() });
    let within = "outer of diloco is nesterov(learning_rate=0, momentum=0.9)";
    let expected = format!("{within}: learning_rate of nesterov is 0; choose a number, above 0");
    assert_eq!(wrong.check().unwrap_err().to_string(), expected);
    let outer = Outer { learning_rate: 0.7, momentum: 1.0 };
    let wrong = AnyAlgorithm::from(StreamingDiLoCo { outer, ..StreamingDiLoCo::default() });
    let error = wrong.check().unwrap_err().to_string();
    assert!(error.ends_with("momentum of nesterov is 1; choose a number, 0 or more, below 1"), "{error}");
    let wrong = AnyAlgorithm::from(StreamingDiLoCo { delay: 16, ..StreamingDiLoCo::default() });
    let expected = "delay of streaming-diloco is 16; choose fewer steps than the period has";
    assert_eq!(wrong.check().unwrap_err().to_string(), expected);
    let averaging = Averaging::encoded(Sign::default(), Feedback::Decaying(1.5));
    let wrong = AnyAlgorithm::from(DiLoCo { averaging, ..DiLoCo::default() });
    let within = "feedback of diloco is error(decay=1.5)";
    let expected = format!("{within}: decay of error is 1.5; choose a number, above 0, 1 at most");
    assert_eq!(wrong.check().unwrap_err().to_string(), expected);
    let zero: [(Averaging, &str); 3] = [
        (Averaging::encoded(Sign::in_blocks(0), Feedback::Error), "sign(block=0): block of sign"),
        (Averaging::encoded(E3M0::in_blocks(0), Feedback::Error), "e3m0(block=0): block of e3m0"),
        (
            Averaging::encoded(TopK::default().in_chunks(0), Feedback::Error),
            "top-k(1%, chunk=0): chunk of top-k",
        ),
    ];
    for (averaging, inner) in zero {
        let error = AnyAlgorithm::from(DiLoCo { averaging, ..DiLoCo::default() }).check().unwrap_err();
        let expected = format!("codec of diloco is {inner} is 0; choose whole, or a whole number, 1 or more");
        assert_eq!(error.to_string(), expected);
    }
    let base = |base: AnyAlgorithm| AnyAlgorithm::from(SlowMo { base: Some(base), ..SlowMo::default() });
    let error = base(LocalSgd { period: 0, ..LocalSgd::default() }.into()).check().unwrap_err().to_string();
    assert!(error.ends_with("period of local-sgd is 0; choose a whole number, 1 or more"), "{error}");
    let error = base(Ssp::default().into()).check().unwrap_err().to_string();
    assert!(
        error.ends_with("choose none, or a synchronous algorithm that remembers no parameters, such as sgp"),
        "{error}"
    );
}

/// Returns every algorithm that mixes over a graph, over this one.
fn over(graph: &Arc<dyn Schedule>) -> [AnyAlgorithm; 12] {
    let schedule = || Arc::clone(graph);
    let gossip = Gossip::over(schedule());
    [
        DPsgd::with(schedule()).into(),
        Decentralized::new(schedule(), 1).into(),
        LowPrecisionDecentralized { schedule: schedule(), ..Default::default() }.into(),
        ChocoSgd { schedule: schedule(), ..ChocoSgd::default() }.into(),
        DeepSqueeze { schedule: schedule(), ..DeepSqueeze::default() }.into(),
        Sgp { schedule: schedule() }.into(),
        NoLoCo { graph: schedule(), ..NoLoCo::default() }.into(),
        ExactDiffusion { graph: schedule() }.into(),
        Extra { graph: schedule() }.into(),
        GradientTracking { gossip: gossip.clone() }.into(),
        GossipPga { gossip: gossip.clone(), ..GossipPga::default() }.into(),
        QgDsgdm { gossip, ..QgDsgdm::default() }.into(),
    ]
}

#[test]
fn graphs_that_were_built_are_refused_as_typed_ones_are() {
    let lazy = |graph, share| Arc::new(Lazy { graph: Arc::new(graph), share });
    let rows = "rows of torus is 0; choose auto, or a whole number, 1 or more";
    let graphs: [(Arc<dyn Schedule>, &str); 7] = [
        (Arc::new(Topology::Torus(Some(0))), rows),
        (Arc::new(Topology::Base { peers: 0 }), "peers of base is 0; choose a whole number, 1 or more"),
        (
            Arc::new(Topology::EquiStatic { seed: 0, hops: Some(0) }),
            "hops of equi-static is 0; choose auto, or a whole number, 1 or more",
        ),
        (
            Arc::new(Topology::RandomPairs { seed: 0, pairs: Some(0) }),
            "pairs of random-pairs is 0; choose all, or a whole number, 1 or more",
        ),
        (lazy(Topology::Ring, 1.5), "share of lazy is 1.5; choose a number, above 0, 1 at most"),
        (lazy(Topology::Torus(Some(0)), 0.5), rows),
        (Arc::new(Vec::<Mixing>::new()), "a schedule has no mixing matrix; choose one or more"),
    ];
    for (graph, line) in graphs {
        for algorithm in over(&graph) {
            let error = algorithm.check().unwrap_err().to_string();
            let begins = format!("graph of {} is ", algorithm.name());
            assert!(error.starts_with(&begins) && error.ends_with(line), "{error}");
        }
    }
}

#[test]
fn the_engine_refuses_them_before_the_first_step() {
    for (algorithm, field, value) in all() {
        let begins = format!("{field} of {} is {value}; choose ", algorithm.name());
        let refused = spawn(TransportKind::Thread, 2, |comm| {
            let made = Trainer::new(&comm, algorithm.clone(), Setup::default(), &[vec![1.0f32; 4]]);
            Ok(made.err().is_some_and(|error| error.to_string().starts_with(&begins)))
        });
        assert_eq!(refused.unwrap(), [true, true], "{begins}");
    }
}
