//! Gradient tracking: it reaches the optimum that D-PSGD misses, and its directions have the mean of the gradients.

use super::*;
use hexagram_algorithms::logical::decentralized::Schedule;

fn tracking(schedule: impl Schedule + 'static) -> Algorithm {
    GradientTracking { gossip: Gossip::over(schedule) }.into()
}

#[test]
fn it_reaches_the_optimum() {
    for (algorithm, ranks) in [
        (tracking(Topology::Ring), 4),
        (tracking(Topology::Star), 5),
        (tracking(Topology::OnePeerExponential), 3),
        (tracking(Topology::OnePeerExponential), 8),
        (tracking(Topology::XorPairs), 6),
    ] {
        let found = train_quadratics(ranks, &algorithm, 0.05, 800);
        assert_near(&found, &vec![optimum(ranks); ranks], 2e-14);
    }
    let missed = train_quadratics(4, &DPsgd::default().into(), 0.05, 800);
    assert!(missed.iter().any(|x| (x - optimum(4)).abs() > 0.05), "{missed:?}");
}

#[test]
fn directions_have_the_mean_of_the_gradients() {
    for transport in transports() {
        let directions = spawn(transport, 5, |comm| {
            let algorithm = Arc::new(GradientTracking::default());
            let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &[vec![0.7f64]])?;
            let mut directions = Vec::new();
            for step in 0..20 {
                trainer.step(|_, _| vec![((comm.rank() * 5 + step * 3) % 7) as f64])?;
                let direction = trainer.engine().settle().and_then(|()| Ok(trainer.parameters()?[0][0]));
                directions.push(direction?);
            }
            Ok(directions)
        });
        let mut x = 0.7;
        for step in 0..20 {
            x -= 0.1 * (0..5).map(|rank| ((rank * 5 + step * 3) % 7) as f64).sum::<f64>() / 5.0;
            let of_step: Vec<f64> = directions.as_ref().unwrap().iter().map(|rank| rank[step]).collect();
            assert!((mean(&of_step) - x).abs() < 1e-13, "step {step}: {of_step:?} around {x}");
        }
    }
}

#[test]
fn one_rank_descends_its_own_gradient() {
    assert_near(&train_quadratics(1, &tracking(Topology::Ring), 0.1, 500), &[0.0], 1e-15);
}
