//! Ranks with different models or options: all of them get the difference as an error, before the first step.

use super::*;
use crate::dgc::Dgc;
use crate::optimizer::{Adam, Muon};

/// Has a field that is not an option.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "its Debug output is what counts")]
struct Unspelled {
    tau: u64,
}

impl Algorithm for Unspelled {
    type State = ();

    fn about(&self) -> About {
        About::new("unspelled", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }
}

/// Returns the common error of all ranks, the last of which differs.
fn errors(new: impl Fn(&Communicator, bool) -> Result<DataParallel> + Sync) -> String {
    let errors = spawn(TransportKind::Thread, 3, |comm| Ok(new(&comm, comm.rank() == 2).err()));
    let errors = errors.unwrap();
    let texts: Vec<String> = errors.into_iter().map(|error| error.unwrap().to_string()).collect();
    assert!(texts.iter().all(|text| *text == texts[0] && !text.contains('\n')), "{texts:?}");
    texts.into_iter().next().unwrap()
}

#[test]
fn options_that_differ_are_named_with_both_values_and_ranks() {
    let text = errors(|comm, other| {
        let dgc = Dgc { fraction: if other { 0.25 } else { 0.5 }, ..Dgc::default() };
        DataParallel::new(comm, parameters(2, 4), dgc, options(40, 80))
    });
    let said = "different options: `fraction` of dgc is 0.5 on rank 0, and it is 0.25 on rank 2";
    assert!(text.contains(said), "{text}");
    let text = errors(|comm, other| {
        let clip_norm = if other { None } else { Some(1.0) };
        engine(comm, parameters(2, 4), EngineOptions { clip_norm, ..options(40, 80) })
    });
    let said = "the option `clip_norm` is 1.0 on rank 0, and it is left out on rank 2";
    assert!(text.contains(said), "{text}");
    let text = errors(|comm, other| {
        let optimizer = Arc::new(Adam { beta1: if other { 0.5 } else { 0.25 }, ..Adam::default() });
        engine(comm, parameters(2, 4), EngineOptions { optimizer: Some(optimizer), ..options(40, 80) })
    });
    assert!(
        text.contains("the optimizer is adam(beta1=0.25) on rank 0, and it is adam(beta1=0.5)"),
        "{text}"
    );
    let text = errors(|comm, other| {
        let except = if other { vec!["head".to_owned()] } else { Vec::new() };
        let optimizer = Arc::new(Muon { except, ..Muon::default() });
        engine(comm, parameters(2, 4), EngineOptions { optimizer: Some(optimizer), ..options(40, 80) })
    });
    assert!(text.contains("the optimizer is Muon {") && text.contains("on rank 2"), "{text}");
    let text = errors(|comm, other| {
        DataParallel::new(
            comm,
            parameters(2, 4),
            Unspelled { tau: if other { 3 } else { 2 } },
            options(40, 80),
        )
    });
    let said = "the algorithm is Unspelled { tau: 2 } on rank 0, and it is Unspelled { tau: 3 } on rank 2";
    assert!(text.contains(said), "{text}");
    let text = errors(|comm, other| match other {
        true => DataParallel::new(comm, parameters(2, 4), LocalSgd::default(), options(40, 80)),
        false => DataParallel::new(comm, parameters(2, 4), GradientAllReduce, options(40, 80)),
    });
    assert!(text.contains("the algorithm is gradient-allreduce on rank 0, and it is local-sgd"), "{text}");
}

#[test]
fn parameters_that_differ_are_named() {
    let with = |at: usize, changed: Parameter| {
        move |comm: &Communicator, other: bool| {
            let mut list = parameters(3, 4);
            if other {
                list[at] = changed.clone();
            }
            engine(comm, list, options(40, 80))
        }
    };
    let text = errors(with(1, parameter("p1", DType::F32, 5)));
    let said =
        "different models: parameter 1 is `p1` of f32 [4] on rank 0, and it is `p1` of f32 [5] on rank 2";
    assert!(text.contains(said), "{text}");
    let text = errors(with(2, parameter("p2", DType::F64, 4)));
    assert!(text.contains("parameter 2 is `p2` of f32 [4] on rank 0, and it is `p2` of f64 [4]"), "{text}");
    let text = errors(with(0, parameter("head", DType::F32, 4)));
    assert!(text.contains("parameter 0 is `p0` of f32 [4] on rank 0, and it is `head`"), "{text}");
    let cut = |count: usize| {
        move |comm: &Communicator, other: bool| {
            engine(comm, parameters(if other { count } else { 3 }, 4), options(40, 80))
        }
    };
    let text = errors(cut(2));
    let said = "parameter 2 is `p2` of f32 [4] on rank 0, and the number of parameters is 2 on rank 2";
    assert!(text.contains(said), "{text}");
    let text = errors(cut(5));
    let said = "the number of parameters is 3 on rank 0, and parameter 3 is `p3` of f32 [4] on rank 2";
    assert!(text.contains(said), "{text}");
}

#[test]
fn learning_rates_that_differ_are_an_error_with_both() {
    for transport in transports() {
        for optimizer in [None, Some(Arc::new(Sgd::default()) as Arc<dyn crate::optimizer::Optimizer>)] {
            for hierarchical in [false, true] {
                let errors = spawn(transport, 2, |comm| {
                    let options =
                        EngineOptions { optimizer: optimizer.clone(), hierarchical, ..options(40, 40) };
                    let mut engine = engine(&comm, parameters(2, 10), options)?;
                    let mut step = |rate: f64| {
                        engine.set_learning_rate(rate);
                        pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10], vec![1.0; 10]])?;
                        if optimizer.is_some() { engine.step() } else { engine.stepped() }
                    };
                    step(0.5)?;
                    Ok(step([0.5, 0.25][comm.rank()]).unwrap_err().to_string())
                });
                let errors = errors.unwrap();
                let has_both = |error: &String| {
                    ["rate 0.5", "rate 0.25", "same learning rate"].iter().all(|part| error.contains(part))
                };
                assert!(errors.iter().any(has_both), "{transport}, {hierarchical}: {errors:?}");
            }
        }
    }
}
