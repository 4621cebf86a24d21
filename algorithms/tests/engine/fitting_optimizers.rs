//! Optimizers under algorithms that leave their own direction: those that do not fit are refused, with the reason.

use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, DType, Result, TransportKind};
use hexagram_algorithms::optimizer::{Members, ParameterGroup};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{
    About, Adam, Algorithm, AnyAlgorithm, Bucket, Context, DataParallel, EngineOptions, GradientAllReduce,
    Mode, Muon, Optimizer, Optimizers, Parameter, Sgd, StepForm, Trigram, registry,
};
use std::sync::Arc;

fn optimizers() -> [(&'static str, Arc<dyn Optimizer>); 4] {
    let plain = Sgd::default();
    [
        ("plain", Arc::new(plain)),
        ("decaying", Arc::new(Sgd { weight_decay: 0.1, ..plain })),
        ("momentum", Arc::new(Sgd { momentum: 0.9, ..plain })),
        ("adam", Arc::new(Adam::default())),
    ]
}

fn trainer(
    comm: &Communicator,
    algorithm: AnyAlgorithm,
    optimizer: &Arc<dyn Optimizer>,
    groups: Vec<ParameterGroup>,
) -> Result<Trainer<f32>> {
    let engine = EngineOptions { groups, ..Setup::default().engine };
    let setup = Setup { optimizer: Arc::clone(optimizer), engine, ..Setup::default() };
    Trainer::new(comm, algorithm, setup, &[vec![1.0f32; 4]])
}

/// Returns the errors of the ranks if they refuse a combination of algorithm, optimizer and parameter groups.
fn refused(name: &str, optimizer: &Arc<dyn Optimizer>, groups: &[ParameterGroup]) -> Option<String> {
    let said = spawn(TransportKind::Thread, 2, |comm| {
        let new = trainer(&comm, registry::named(name)?, optimizer, groups.to_vec());
        Ok(new.err().map(|error| error.to_string()))
    });
    let said = said.unwrap();
    assert_eq!(said[0], said[1], "{name}");
    said.into_iter().next().flatten()
}

#[test]
fn what_bends_a_direction_is_refused_with_the_reason() {
    let fit = |name: &str| -> Vec<&str> {
        let fitting =
            optimizers().into_iter().filter(|(_, optimizer)| refused(name, optimizer, &[]).is_none());
        fitting.map(|(kind, _)| kind).collect()
    };
    for name in ["qadam", "qadam-8bit", "signsgd-vote", "demo", "dgc"] {
        assert_eq!(fit(name), ["plain", "decaying"], "{name}");
    }
    assert_eq!(fit("zero-one-adam"), ["plain"]);
    assert_eq!(fit("gradient-allreduce"), ["plain", "decaying", "momentum", "adam"]);
    let adam: Arc<dyn Optimizer> = Arc::new(Adam::default());
    let text = refused("qadam", &adam, &[]).unwrap();
    assert!(text.contains("adam does not fit qadam, since"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn a_rate_of_some_parameters_does_not_fit_what_reads_steps_off_the_parameters() {
    let plain: Arc<dyn Optimizer> = Arc::new(Sgd::default());
    let slow = ParameterGroup { learning_rate: 0.1, ..ParameterGroup::of(Members::Vectors) };
    let text = refused("zero-one-adam", &plain, std::slice::from_ref(&slow)).unwrap();
    assert!(text.contains("learning rate for Vectors"), "{text}");
    assert_eq!(refused("qadam", &plain, &[slow]), None);
    let decays = ParameterGroup { weight_decay: 0.0, ..ParameterGroup::of(Members::Vectors) };
    assert_eq!(refused("zero-one-adam", &plain, &[decays]), None);
}

#[test]
fn a_switch_is_refused_too_and_so_is_a_frameworks_optimizer_that_is_known() {
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let adam: Arc<dyn Optimizer> = Arc::new(Adam::default());
        let mut trainer = trainer(&comm, GradientAllReduce.into(), &adam, Vec::new())?;
        trainer.engine().check_framework_optimizer(StepForm::Other, "AdamW")?;
        Ok(trainer.engine().switch(registry::named("demo")?).unwrap_err().to_string())
    });
    assert!(errors.unwrap().iter().all(|error| error.contains("does not fit demo")));
    spawn(TransportKind::Thread, 1, |comm| {
        let plain: Arc<dyn Optimizer> = Arc::new(Sgd::default());
        let mut trainer = trainer(&comm, registry::named("demo")?, &plain, Vec::new())?;
        trainer.engine().check_framework_optimizer(StepForm::Decaying, "SGD")?;
        let error = trainer.engine().check_framework_optimizer(StepForm::Other, "AdamW").unwrap_err();
        assert!(error.to_string().contains("AdamW does not fit demo"), "{error}");
        Ok(())
    })
    .unwrap();
}

/// Leaves gradients unchanged, for Muon only.
#[derive(Debug, Clone)]
struct AsksForMuon;

impl Algorithm for AsksForMuon {
    type State = ();

    fn about(&self) -> About {
        About::new("asks-for-muon", Trigram { centralized: true, synchronous: true, full_precision: true })
            .optimizers(Optimizers::Named {
                optimizer: "muon(momentum=0.5)",
                reason: "it is defined with Muon",
            })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }
}

#[test]
fn an_optimizer_that_an_algorithm_names_is_taken_if_none_is_given_and_no_other_fits() {
    let step = |optimizer: Option<Arc<dyn Optimizer>>| {
        let stepped = spawn(TransportKind::Thread, 1, |comm| {
            let weights = Parameter { name: "w".to_owned(), dtype: DType::F32, shape: vec![2, 2] };
            let learning_rate = Some(0.1.into());
            let options =
                EngineOptions { optimizer: optimizer.clone(), learning_rate, ..EngineOptions::default() };
            let mut engine = DataParallel::new(&comm, vec![weights], AsksForMuon, options)?;
            for _ in 0..2 {
                engine.begin(Mode::Synchronize)?;
                engine.hooks().ready_slice(0, &[1.0f32, 2.0, -3.0, 4.0])?;
                engine.finish_and_step()?;
            }
            let framework = engine.check_framework_optimizer(StepForm::Plain, "SGD").unwrap_err();
            assert!(framework.to_string().contains("SGD does not fit asks-for-muon"), "{framework}");
            let values = engine.values::<f32>(0)?;
            let unknown = engine.stepped().unwrap_err().to_string();
            assert!(unknown.contains("the framework's optimizer does not fit asks-for-muon"), "{unknown}");
            Ok(values)
        });
        stepped.map(|ranks| ranks[0].clone())
    };
    let given = Muon { momentum: 0.5, ..Muon::default() };
    let stepped = step(None).unwrap();
    assert_eq!(stepped, step(Some(Arc::new(given.clone()))).unwrap());
    let other = step(Some(Arc::new(Muon { weight_decay: 0.0, ..given }))).unwrap();
    assert!(stepped != other && stepped.iter().all(|x| *x != 0.0), "{stepped:?} {other:?}");
    let refused = step(Some(Arc::new(Sgd::default()))).unwrap_err().to_string();
    assert!(refused.contains("does not fit asks-for-muon, since it is defined with Muon"), "{refused}");
    assert!(refused.contains("set it to muon(momentum=0.5)"), "{refused}");
}

#[test]
fn a_switch_to_an_algorithm_that_names_an_optimizer_is_refused_to_another() {
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let plain: Arc<dyn Optimizer> = Arc::new(Sgd::default());
        let mut trainer = trainer(&comm, GradientAllReduce.into(), &plain, Vec::new())?;
        Ok(trainer.engine().switch(AsksForMuon).unwrap_err().to_string())
    });
    assert!(errors.unwrap().iter().all(|error| error.contains("does not fit asks-for-muon")));
}

#[test]
fn the_table_in_the_docs_is_what_algorithms_declare() {
    let docs = include_str!("../../../docs/algorithms.md");
    let listed = |row: &str| -> Vec<String> {
        let row = docs.lines().find(|line| line.starts_with(row)).unwrap();
        row.split('`').skip(3).step_by(2).map(str::to_owned).collect()
    };
    let declare = |kind: fn(Optimizers) -> bool| -> Vec<String> {
        let all = registry::all().into_iter().filter(|algorithm| kind(algorithm.optimizers()));
        all.map(|algorithm| algorithm.name().to_owned()).collect()
    };
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    let sgd = declare(|fitting| matches!(fitting, Optimizers::Sgd(_)));
    assert_eq!(sorted(listed("| `Optimizers::Sgd`")), sorted(sgd));
    let bare = declare(|fitting| matches!(fitting, Optimizers::BareSgd(_)));
    assert_eq!(sorted(listed("| `Optimizers::BareSgd`")), sorted(bare));
    let named = declare(|fitting| matches!(fitting, Optimizers::Named { .. }));
    assert_eq!(sorted(listed("| `Optimizers::Named`")), sorted(named));
}
