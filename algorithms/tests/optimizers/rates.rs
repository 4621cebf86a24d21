//! Learning rates against the schedules of PyTorch, and how the engine follows them.

use super::*;
use hexagram_algorithms::{LearningRate, Mode, RateSchedule};

/// Every schedule of `vectors.py`.
fn schedules() -> Vec<(&'static str, LearningRate)> {
    let rate = |warmup, schedule| LearningRate { base: RATE, warmup, start: 0.1, schedule };
    let both = |schedule| [rate(0, schedule), rate(10, schedule)];
    let [linear, warm_linear] = both(RateSchedule::Linear { steps: 80, end: 0.25 });
    let [cosine, _] = both(RateSchedule::Cosine { steps: STEPS, end: 0.1 });
    let cycle = RateSchedule::OneCycle { steps: STEPS, rise: 0.3, start: 1.0 / 25.0, end: 1.0 / 250_000.0 };
    let short = RateSchedule::OneCycle { steps: STEPS, rise: 0.1, start: 0.1, end: 0.001 };
    vec![
        ("constant", RATE.into()),
        ("constant-warm-up", rate(10, RateSchedule::Constant)),
        ("linear", linear),
        ("linear-warm-up", warm_linear),
        ("cosine", cosine),
        ("cosine-warm-up", rate(10, RateSchedule::Cosine { steps: STEPS, end: 0.0 })),
        ("step", rate(0, RateSchedule::Step { every: 30, factor: 0.1 })),
        ("step-warm-up", rate(10, RateSchedule::Step { every: 30, factor: 0.5 })),
        ("one-cycle", LearningRate { schedule: cycle, ..RATE.into() }),
        ("one-cycle-short", LearningRate { schedule: short, ..RATE.into() }),
    ]
}

#[test]
fn every_schedule_has_the_rates_of_pytorchs() {
    for (name, rate) in schedules() {
        let expected = expected(&format!("schedule {name}"), 1).remove(0);
        assert_eq!(expected.len(), STEPS as usize);
        for (step, expected) in expected.into_iter().enumerate() {
            let found = rate.at(step as u64);
            assert!((found - expected).abs() < 1e-12 * RATE, "{name} {step}: {found} and not {expected}");
        }
        // After the end of the schedule, the last rate stays.
        assert!(rate.at(u64::MAX).is_finite(), "{name}");
    }
}

/// Makes steps with a gradient of 1, and appends x after each.
fn path(engine: &mut DataParallel, steps: usize, path: &mut Vec<f64>) -> Result<()> {
    for _ in 0..steps {
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(0, &[1.0f64])?;
        engine.finish_and_step()?;
        path.push(engine.values::<f64>(0)?[0]);
    }
    Ok(())
}

fn scalar(comm: &Communicator, rate: Option<LearningRate>) -> Result<DataParallel> {
    let list = vec![Parameter { name: "x".into(), dtype: DType::F64, shape: vec![] }];
    let options = EngineOptions {
        optimizer: Some(Arc::new(Sgd::default())),
        learning_rate: rate,
        queue: queue(),
        ..EngineOptions::default()
    };
    DataParallel::new(comm, list, Arc::new(GradientAllReduce), options)
}

#[test]
fn the_engine_follows_its_schedule_until_another_rate_is_set() {
    spawn(TransportKind::Thread, 2, |comm| {
        let schedule = RateSchedule::Linear { steps: 4, end: 0.0 };
        let mut engine =
            scalar(&comm, Some(LearningRate { base: 1.0, schedule, ..LearningRate::default() }))?;
        let mut found = Vec::new();
        path(&mut engine, 3, &mut found)?;
        assert_eq!(engine.learning_rate(), Some(0.25));
        engine.set_learning_rate(2.0);
        path(&mut engine, 1, &mut found)?;
        // A function of the step number, wherever it begins.
        engine.set_learning_rate(LearningRate { base: 8.0, schedule, ..LearningRate::default() });
        path(&mut engine, 1, &mut found)?;
        assert_eq!(found, [-1.0, -1.75, -2.25, -4.25, -4.25]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_checkpoint_goes_on_with_its_schedule_and_is_refused_by_another() {
    let schedule = RateSchedule::Cosine { steps: 12, end: 0.1 };
    let rate = LearningRate { base: 0.7, warmup: 3, start: 0.3, schedule };
    // Set in the options, and during the training: then only the checkpoint contains it.
    for given in [Some(rate), None] {
        spawn(TransportKind::Thread, 2, |comm| {
            let begin = || -> Result<DataParallel> {
                let mut engine = scalar(&comm, given)?;
                given.is_none().then(|| engine.set_learning_rate(rate));
                Ok(engine)
            };
            let mut whole = Vec::new();
            path(&mut begin()?, 15, &mut whole)?;
            for cut in [2, 9] {
                let mut parts = Vec::new();
                let mut first = begin()?;
                path(&mut first, cut, &mut parts)?;
                let record = first.checkpoint().save()?;
                let mut second = scalar(&comm, given)?;
                second.checkpoint().load(record)?;
                path(&mut second, 15 - cut, &mut parts)?;
                assert_eq!(parts, whole);
            }
            Ok(())
        })
        .unwrap();
    }
    spawn(TransportKind::Thread, 2, |comm| {
        let mut saved = scalar(&comm, Some(rate))?;
        let record = saved.checkpoint().save()?;
        let longer = LearningRate { schedule: RateSchedule::Cosine { steps: 13, end: 0.1 }, ..rate };
        let error = scalar(&comm, Some(longer))?.checkpoint().load(record).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("steps=12") && text.contains("steps=13"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn schedules_are_spelled() {
    let all = schedules().into_iter().map(|(_, rate)| rate);
    for rate in all.chain([0.1.into(), (1.0 / 3.0).into(), 1e-300.into()]) {
        assert_eq!(rate.to_string().parse::<LearningRate>().unwrap(), rate, "{rate}");
    }
    let known = LearningRate::catalogue(0.25, 600);
    let cosine = known.named("cosine(warmup=50, end=10%)").unwrap();
    let schedule = RateSchedule::Cosine { steps: 600, end: 0.1 };
    assert_eq!(cosine, LearningRate { base: 0.25, warmup: 50, schedule, ..LearningRate::default() });
    assert_eq!(known.named("step").unwrap().schedule, RateSchedule::Step { every: 200, factor: 0.1 });
    for (text, reason) in [
        ("cosin", "cosine"),
        ("cosine(warm=5)", "warmup"),
        ("cosine(base=-1)", "base of cosine is -1; choose a number, 0 or more"),
        ("cosine(warmup=600)", "steps of cosine is 600; choose more than those of the warm-up"),
        ("linear(end=-0.1)", "end of linear is -0.1; choose a number, 0 or more"),
        ("step(every=0)", "every of step is 0; choose a whole number, 1 or more"),
        ("step(factor=0)", "factor of step is 0; choose a number, above 0"),
        ("constant(start=2)", "start of constant is 2; choose a number, 0 or more, 1 at most"),
        ("one-cycle(rise=1)", "rise of one-cycle is 1; choose a number, above 0, below 1"),
        ("one-cycle(steps=3)", "steps of one-cycle is 3; choose more than 1 / rise"),
        ("one-cycle(end=2)", "end of one-cycle is 2; choose a number, 0 or more, 1 at most"),
        ("one-cycle(warmup=2)", "warmup"),
    ] {
        let error = known.named(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
