//! The optimizers of the engine against those of PyTorch, or the algorithms of their papers, over 100 steps: parameter
//! groups, weight decay, tensors of several shapes in several buckets, both float types; refusals, and resumption from
//! checkpoints.
//!
//! `vectors.py` has created `vectors.txt`, once.

mod device;
mod rates;

use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::logical::testing::{queue, spawn};
use hexagram_algorithms::logical::{Communicator, DType, Element, Result, TransportKind};
use hexagram_algorithms::optimizer::{Lamb, Lars, Lion, Members, Muon, MuonScale, ParameterGroup, named};
use hexagram_algorithms::testing::{Setup, Trainer, resumes_exactly};
use hexagram_algorithms::{
    Adam, AdamW, DataParallel, EngineOptions, GradientAllReduce, Optimizer, Order, Parameter, Sgd,
};
use std::sync::Arc;

const VECTORS: &str = include_str!("vectors.txt");
const STEPS: u64 = 100;
const RATE: f64 = 0.02;
/// Shapes of the tensors; the name of the fourth puts it in a group.
const SHAPES: [&[usize]; 5] = [&[4, 6], &[5], &[3, 2, 2, 2], &[6, 3], &[]];

/// Every case of `vectors.py`: its optimizer, and true if there are parameter groups.
fn cases() -> Vec<(&'static str, bool, Arc<dyn Optimizer>)> {
    let sgd = Sgd { weight_decay: 0.1, momentum: 0.9, ..Sgd::default() };
    let adam = Adam { beta1: 0.8, beta2: 0.95, epsilon: 1e-6, weight_decay: 0.1 };
    let adamw = AdamW { beta1: 0.8, beta2: 0.95, epsilon: 1e-6, weight_decay: 0.1 };
    let lamb = Lamb { beta1: 0.8, beta2: 0.95, weight_decay: 0.1, scale_vectors: true, ..Lamb::default() };
    let lars = Lars { momentum: 0.8, nesterov: true, trust: 0.02, scale_vectors: true, ..Lars::default() };
    let muon = Muon {
        momentum: 0.9,
        nesterov: false,
        scale: MuonScale::Original,
        except: vec!["p3".into()],
        ..Muon::default()
    };
    vec![
        ("sgd", false, Arc::new(Sgd::default())),
        ("sgd-decay", true, Arc::new(Sgd { momentum: 0.0, ..sgd })),
        ("sgd-momentum", true, Arc::new(sgd)),
        ("sgd-dampening", false, Arc::new(Sgd { dampening: 0.3, ..sgd })),
        ("sgd-nesterov", true, Arc::new(Sgd { nesterov: true, ..sgd })),
        ("adam", false, Arc::new(Adam::default())),
        ("adam-decay", true, Arc::new(adam)),
        ("adamw", false, Arc::new(AdamW::default())),
        ("adamw-decay", true, Arc::new(adamw)),
        ("lion", false, Arc::new(Lion::default())),
        ("lion-decay", true, Arc::new(Lion { beta1: 0.95, beta2: 0.98, weight_decay: 0.1 })),
        ("lamb", true, Arc::new(Lamb::default())),
        ("lamb-vectors", false, Arc::new(lamb)),
        ("lars", true, Arc::new(Lars { weight_decay: 0.1, ..Lars::default() })),
        ("lars-nesterov", false, Arc::new(lars)),
        ("muon", true, Arc::new(Muon::default())),
        ("muon-original", false, Arc::new(muon)),
    ]
}

/// Returns a pseudo-random number in [-1, 1) of 16 bits, the same as in `vectors.py`.
fn draw(stream: u64, tensor: usize, at: usize) -> f32 {
    let mut h = 0x9E37_79B9u32;
    for number in [stream as u32, tensor as u32, at as u32] {
        h = (h ^ number).wrapping_mul(0x85EB_CA6B).wrapping_add(0xC2B2_AE35);
        h ^= h >> 13;
    }
    ((h >> 8) % 65536) as f32 / 32768.0 - 1.0
}

fn drawn<T: Element + From<f32>>(stream: u64, tensor: usize) -> Vec<T> {
    let elements: usize = SHAPES[tensor].iter().product();
    (0..elements).map(|at| T::from(draw(stream, tensor, at))).collect()
}

/// Returns the lines below a heading of the vectors, as numbers.
fn expected(heading: &str, lines: usize) -> Vec<Vec<f64>> {
    let mut all = VECTORS.lines();
    assert!(all.any(|line| line == heading), "the vectors have no `{heading}`");
    let numbers = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect();
    all.take(lines).map(numbers).collect()
}

/// Trains with an optimizer; returns the largest difference from the vectors, relative to the larger of 1 and the
/// number.
fn difference<T>(name: &str, grouped: bool, optimizer: &Arc<dyn Optimizer>) -> Result<f64>
where
    T: Element + From<f32> + Into<f64>,
{
    let named = ParameterGroup { learning_rate: 0.5, ..ParameterGroup::of(Members::Named("p3".into())) };
    let vectors = ParameterGroup { weight_decay: 0.0, ..ParameterGroup::of(Members::Vectors) };
    let engine = EngineOptions {
        // The order of the first pass differs from the listed order, so everything moves.
        order: Order::Observed,
        first_bucket_bytes: 40,
        bucket_bytes: 150,
        groups: if grouped { vec![named, vectors] } else { Vec::new() },
        ..EngineOptions::default()
    };
    let setup = Setup { learning_rate: RATE, optimizer: Arc::clone(optimizer), engine };
    let initial: Vec<Vec<T>> = (0..SHAPES.len()).map(|tensor| drawn(0, tensor)).collect();
    let shapes = SHAPES.map(<[usize]>::to_vec);
    let dtype = if T::DTYPE == DType::F64 { "f64" } else { "f32" };
    let found = spawn(TransportKind::Thread, 1, |comm| {
        let mut trainer =
            Trainer::with_shapes(&comm, Arc::new(GradientAllReduce), setup.clone(), &initial, &shapes)?;
        let mut largest: f64 = 0.0;
        for step in 1..=STEPS {
            trainer.step(|tensor, _| drawn(step, tensor))?;
            if ![1, 10, STEPS].contains(&step) {
                continue;
            }
            let expected = expected(&format!("case {name} {dtype} {step}"), SHAPES.len());
            for (found, expected) in trainer.parameters()?.into_iter().zip(expected) {
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.into_iter().zip(expected) {
                    let found: f64 = found.into();
                    largest = largest.max((found - expected).abs() / expected.abs().max(1.0));
                }
            }
        }
        Ok(largest)
    })?;
    Ok(found[0])
}

#[test]
fn every_optimizer_takes_the_steps_of_the_original() {
    for (name, grouped, optimizer) in cases() {
        let single = difference::<f32>(name, grouped, &optimizer).unwrap();
        let double = difference::<f64>(name, grouped, &optimizer).unwrap();
        assert!(single < 1e-6, "{name} in f32 is off by {single:e}");
        assert!(double < 1e-12, "{name} in f64 is off by {double:e}");
    }
}

#[test]
fn optimizers_go_on_from_a_checkpoint_with_their_groups() {
    let group = ParameterGroup { weight_decay: 0.0, ..ParameterGroup::of(Members::Vectors) };
    for (name, _, optimizer) in cases() {
        if !["sgd-momentum", "adamw", "lion", "lamb", "lars", "muon"].contains(&name) {
            continue;
        }
        let engine = EngineOptions {
            groups: vec![group.clone()],
            first_bucket_bytes: 200,
            bucket_bytes: 800,
            ..EngineOptions::default()
        };
        let optimizer = || Arc::clone(&optimizer);
        let setup = || Setup { engine: engine.clone(), optimizer: optimizer(), learning_rate: 0.02 };
        let resumed = resumes_exactly(2, 3, 2, &setup, || Arc::new(GradientAllReduce));
        resumed.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Returns the error of a training with these options.
fn refusal(engine: EngineOptions) -> String {
    spawn(TransportKind::Thread, 1, |comm| {
        let list = vec![Parameter { name: "w".into(), dtype: DType::F32, shape: vec![2, 2] }];
        let made = DataParallel::new(&comm, list, Arc::new(GradientAllReduce), engine.clone());
        Ok(made.err().map(|error| error.to_string()).unwrap_or_default())
    })
    .unwrap()
    .remove(0)
}

#[test]
fn constants_out_of_range_are_refused_by_field_value_and_range() {
    let by = |optimizer: Arc<dyn Optimizer>| EngineOptions {
        optimizer: Some(optimizer),
        ..EngineOptions::default()
    };
    let fraction = "choose a number, 0 or more, below 1";
    let sgd = Sgd::default();
    let adam = Adam::default();
    let adamw = AdamW::default();
    let lion = Lion::default();
    let lamb = Lamb::default();
    let lars = Lars::default();
    let muon = Muon::default;
    let refused: Vec<(Arc<dyn Optimizer>, &str, &str)> = vec![
        (Arc::new(Sgd { momentum: 1.0, ..sgd }), "momentum of sgd is 1", fraction),
        (Arc::new(Sgd { dampening: -0.5, ..sgd }), "dampening of sgd is -0.5", fraction),
        (
            Arc::new(Sgd { weight_decay: f64::NAN, ..sgd }),
            "weight_decay of sgd is NaN",
            "choose a number, 0 or more",
        ),
        (Arc::new(Sgd { nesterov: true, ..sgd }), "nesterov of sgd is true", "a momentum above 0"),
        (Arc::new(Adam { beta1: 1.0, ..adam }), "beta1 of adam is 1", fraction),
        (Arc::new(Adam { beta2: -0.1, ..adam }), "beta2 of adam is -0.1", fraction),
        (
            Arc::new(Adam { epsilon: f64::INFINITY, ..adam }),
            "epsilon of adam is inf",
            "choose a number, 0 or more",
        ),
        (
            Arc::new(Adam { weight_decay: -1.0, ..adam }),
            "weight_decay of adam is -1",
            "choose a number, 0 or more",
        ),
        (Arc::new(AdamW { beta1: 2.0, ..adamw }), "beta1 of adamw is 2", fraction),
        (Arc::new(AdamW { beta2: f64::NAN, ..adamw }), "beta2 of adamw is NaN", fraction),
        (
            Arc::new(AdamW { epsilon: -1e-8, ..adamw }),
            "epsilon of adamw is -1e-8",
            "choose a number, 0 or more",
        ),
        (
            Arc::new(AdamW { weight_decay: -0.1, ..adamw }),
            "weight_decay of adamw is -0.1",
            "choose a number, 0 or more",
        ),
        (Arc::new(Lion { beta1: 1.0, ..lion }), "beta1 of lion is 1", fraction),
        (Arc::new(Lion { beta2: 1.0, ..lion }), "beta2 of lion is 1", fraction),
        (
            Arc::new(Lion { weight_decay: -0.1, ..lion }),
            "weight_decay of lion is -0.1",
            "choose a number, 0 or more",
        ),
        (Arc::new(Lamb { beta1: 1.0, ..lamb }), "beta1 of lamb is 1", fraction),
        (Arc::new(Lamb { beta2: 1.5, ..lamb }), "beta2 of lamb is 1.5", fraction),
        (Arc::new(Lamb { epsilon: -1.0, ..lamb }), "epsilon of lamb is -1", "choose a number, 0 or more"),
        (
            Arc::new(Lamb { weight_decay: -1.0, ..lamb }),
            "weight_decay of lamb is -1",
            "choose a number, 0 or more",
        ),
        (Arc::new(Lars { momentum: 1.0, ..lars }), "momentum of lars is 1", fraction),
        (Arc::new(Lars { trust: 0.0, ..lars }), "trust of lars is 0", "choose a number, above 0"),
        (Arc::new(Lars { epsilon: -1.0, ..lars }), "epsilon of lars is -1", "choose a number, 0 or more"),
        (
            Arc::new(Lars { weight_decay: -1.0, ..lars }),
            "weight_decay of lars is -1",
            "choose a number, 0 or more",
        ),
        (Arc::new(Muon { momentum: 1.0, ..muon() }), "momentum of muon is 1", fraction),
        (
            Arc::new(Muon { weight_decay: -1.0, ..muon() }),
            "weight_decay of muon is -1",
            "choose a number, 0 or more",
        ),
        (
            Arc::new(Muon { rounds: 0, ..muon() }),
            "rounds of muon is 0",
            "choose a whole number, 1 or more, 100 at most",
        ),
        (Arc::new(Muon { rest: AdamW { beta1: 1.0, ..adamw }, ..muon() }), "beta1 of adamw is 1", fraction),
    ];
    for (optimizer, field, range) in refused {
        let text = refusal(by(optimizer));
        assert!(text.contains(field) && text.contains(range) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn groups_that_cannot_be_meant_are_refused() {
    let with = |group: ParameterGroup| EngineOptions {
        optimizer: Some(Arc::new(Sgd::default())),
        groups: vec![group],
        ..EngineOptions::default()
    };
    let named = |name: &str| ParameterGroup::of(Members::Named(name.into()));
    let refused = [
        (with(named("bias")), "no parameter of the model has a name like the parameter group's `bias`"),
        (with(ParameterGroup { learning_rate: -1.0, ..named("w") }), "learning_rate of the parameter group"),
        (
            with(ParameterGroup { weight_decay: f64::NAN, ..named("w") }),
            "weight_decay of the parameter group",
        ),
        (EngineOptions { optimizer: None, ..with(named("w")) }, "need an engine optimizer, and none is set"),
    ];
    for (options, reason) in refused {
        let text = refusal(options);
        assert!(text.contains(reason), "{text}");
    }
    assert_eq!(refusal(with(named("*"))), "");
}

#[test]
fn what_muon_remembers_is_averaged_with_the_replicas() {
    // Decentralized replicas differ, and so do their slots; matrices have no second moments.
    let moments = spawn(TransportKind::Thread, 3, |comm| {
        let optimizer = Arc::new(Muon::default());
        let setup = Setup { optimizer, ..Setup::default() };
        let initial = [vec![1.0f32; 6], vec![1.0; 3]];
        let shapes = [vec![2, 3], vec![3]];
        let mut trainer = Trainer::with_shapes(&comm, Arc::new(DPsgd::default()), setup, &initial, &shapes)?;
        trainer.step(|tensor, _| drawn::<f32>(comm.rank() as u64, 2)[..6 - 3 * tensor].to_vec())?;
        trainer.engine().switch(Arc::new(GradientAllReduce))?;
        let saved = trainer.engine().checkpoint().save()?;
        assert!(saved.tensor("optimizer/second-moment/p0").is_err());
        let first: Vec<f32> = saved.get("optimizer/first-moment/p0")?;
        Ok((first, saved.get::<f32>("optimizer/second-moment/p1")?))
    })
    .unwrap();
    assert_eq!(moments[0], moments[1]);
    assert_eq!(moments[0], moments[2]);
    let mean = |at: usize| (0..3).map(|rank| draw(rank, 2, at)).sum::<f32>() / 3.0;
    for (at, m) in moments[0].0.iter().enumerate() {
        assert!((m - 0.05 * mean(at)).abs() < 1e-7, "{m}");
    }
}

#[test]
fn optimizers_are_spelled() {
    for (text, spelled) in [
        ("sgd", "sgd"),
        ("sgd(momentum=90%, nesterov=true)", "sgd(momentum=0.9, nesterov=true)"),
        ("adam(epsilon=1e-8)", "adam"),
        ("adamw(weight-decay=0.1)", "adamw(weight_decay=0.1)"),
        ("lion(beta1=0.95)", "lion(beta1=0.95)"),
        ("lamb(scale_vectors=true)", "lamb(scale_vectors=true)"),
        ("lars(trust=2%)", "lars(trust=0.02)"),
        ("muon(scale=original, rounds=6)", "muon(rounds=6, scale=original)"),
    ] {
        assert_eq!(named(text).unwrap().spelled(), spelled);
        assert_eq!(named(spelled).unwrap().spelled(), spelled);
    }
    let nested = named("muon(rest=adamw(beta1=0.8))").unwrap();
    let again = named(&nested.spelled()).unwrap();
    assert_eq!(format!("{again:?}"), format!("{nested:?}"));
    for (text, reason) in [
        ("adamv", "adamw"),
        ("adamw(decay=1)", "weight_decay"),
        ("adamw(beta1=1)", "beta1 of adamw is 1; choose a number, 0 or more, below 1"),
        ("sgd(nesterov=true)", "nesterov of sgd is true; choose false, or a momentum above 0"),
        ("muon(scale=own)", "scale of muon is own; choose original or match-adamw"),
    ] {
        let error = named(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
