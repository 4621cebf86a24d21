//! Algorithms whose parameters are moved between steps by something else, as SlowMo moves those of its base.

use super::warmed_up::{algorithms, sampled};
use hexagram_algorithms::AnyAlgorithm;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Buffer, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer, fitting};

const STEPS: usize = 24;

/// Returns the mean of the replicas after gradients that do not depend on it, where all are moved by `way` after 13
/// steps.
fn mean(algorithm: &AnyAlgorithm, way: f32) -> Result<Vec<f32>> {
    let mut found = spawn(TransportKind::Thread, 3, |comm| {
        let usual = Setup::default();
        let setup = Setup { optimizer: fitting(algorithm, usual.optimizer.clone()), ..usual };
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup, &[vec![0.5f32; 12]])?;
        for step in 0..STEPS {
            if step == 13 {
                trainer.engine().settle()?;
                let moved: Vec<f32> = trainer.parameters()?[0].iter().map(|x| x + way).collect();
                trainer.engine().set_parameter(0, &Buffer::from_slice(&moved)?)?;
            }
            let gradient = |at: usize| ((at * 7 + comm.rank() * 31 + step * 13) % 101) as f32 / 50.0 - 0.9;
            trainer.step(|_, x| (0..x.len()).map(gradient).collect())?;
        }
        trainer.engine().settle()?;
        trainer.engine().average()?;
        Ok(trainer.parameters()?.remove(0))
    })?;
    Ok(found.swap_remove(0))
}

/// SlowMo accepts these as its base, and refuses the others: its own step is such a move.
#[test]
fn what_remembers_no_parameters_goes_along_and_only_that() {
    let mut wrong = Vec::new();
    for algorithm in sampled(algorithms()) {
        let text = algorithm.to_string();
        // It remembers no parameters until it freezes its variance.
        if !algorithm.trigram().synchronous || text == "zero-one-adam" {
            continue;
        }
        let moved = mean(&algorithm, 1.0).unwrap();
        let lags = mean(&algorithm, 0.0).unwrap().iter().zip(&moved).any(|(x, moved)| {
            let way = moved - x;
            !(0.999..1.001).contains(&way)
        });
        if lags != algorithm.remembers_parameters() {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
