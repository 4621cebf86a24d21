//! Numbers out of range in algorithms built in code: refused at the start, in one line that names option, value and
//! range. `spelling.rs` tests the same checks for every option of every algorithm as text.

use hexagram_algorithms::bytegrad::ByteGrad;
use hexagram_algorithms::choco_sgd::ChocoSgd;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::diloco::{DiLoCo, Outer};
use hexagram_algorithms::gossip::Gossip;
use hexagram_algorithms::gossip_pga::GossipPga;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::loco::LoCo;
use hexagram_algorithms::logical::codec::{E3M0, Sign, TopK};
use hexagram_algorithms::logical::decentralized::{Lazy, Mixing, Schedule, Topology};
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::logical::{TransportKind, testing::spawn};
use hexagram_algorithms::noloco::NoLoCo;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::slowmo::SlowMo;
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::streaming_diloco::StreamingDiLoCo;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, Averaging, Frozen, Moments, Registry};
use std::sync::Arc;

/// Algorithms with one option out of range, its name, and the value as printed.
fn wrong() -> [(AnyAlgorithm, &'static str, &'static str); 10] {
    let moments = Moments { beta2: f64::NAN, ..Moments::default() };
    let frozen = Frozen { clip: Some(0.0), ..Frozen::default() };
    let gossip = Gossip { consensus: Some(2.0), ..Gossip::over(Topology::Ring) };
    [
        (ByteGrad::in_blocks(0).into(), "block", "0"),
        (LoCo { memory: -0.1, ..LoCo::default() }.into(), "memory", "-0.1"),
        (CompressedAllReduce::TopK { fraction: 1.5 }.into(), "fraction", "1.5"),
        (CompressedAllReduce::LowRank { rank: 2, saving: 0.5, start: 0 }.into(), "saving", "0.5"),
        (QAdam { moments, ..QAdam::eight_bits() }.into(), "beta2", "NaN"),
        (QAdam { frozen, ..QAdam::default() }.into(), "clip", "0"),
        (LocalSgd { period: 0, ..LocalSgd::post(100) }.into(), "period", "0"),
        (NoLoCo { outer_rate: f64::INFINITY, ..NoLoCo::default() }.into(), "outer_rate", "inf"),
        (GossipPga { gossip, ..GossipPga::default() }.into(), "consensus", "2"),
        (ChocoSgd { consensus: Some(0.0), ..ChocoSgd::default() }.into(), "consensus", "0"),
    ]
}

#[test]
fn numbers_out_of_their_ranges_are_refused_with_field_value_and_range() {
    for (algorithm, field, value) in wrong() {
        let name = algorithm.name();
        let help = Registry::built_in().help(name).unwrap();
        let range = &help.fields.iter().find(|known| known.name == field).unwrap().range;
        let expected = format!("{field} of {name} is {value}; choose {range}");
        assert_eq!(algorithm.check().unwrap_err().to_string(), expected);
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
        let gossip = Gossip::over(Arc::clone(&graph));
        let own = AnyAlgorithm::from(DPsgd::with(Arc::clone(&graph)));
        for algorithm in [own, GossipPga { gossip, ..GossipPga::default() }.into()] {
            let error = algorithm.check().unwrap_err().to_string();
            let begins = format!("graph of {} is ", algorithm.name());
            assert!(error.starts_with(&begins) && error.ends_with(line), "{error}");
        }
    }
}

#[test]
fn the_engine_refuses_them_before_the_first_step() {
    for (algorithm, field, value) in wrong().into_iter().step_by(3) {
        let begins = format!("{field} of {} is {value}; choose ", algorithm.name());
        let refused = spawn(TransportKind::Thread, 2, |comm| {
            let made = Trainer::new(&comm, algorithm.clone(), Setup::default(), &[vec![1.0f32; 4]]);
            Ok(made.err().is_some_and(|error| error.to_string().starts_with(&begins)))
        });
        assert_eq!(refused.unwrap(), [true, true], "{begins}");
    }
}
