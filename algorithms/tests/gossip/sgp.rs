//! Stochastic gradient push: the optimum of the mean for any number of ranks and over directed graphs, and D-PSGD if
//! all weights stay 1.

use super::*;
use hexagram_algorithms::logical::decentralized::{Mixing, Schedule};
use std::collections::BTreeSet;

fn push(schedule: impl Schedule + 'static) -> Algorithm {
    Sgp { schedule: Arc::new(schedule) }.into()
}

/// 0 → 1, 0 → 2, 1 → 2, 2 → 3, 3 → 0: ranks send to one or two, and receive from one or two.
fn uneven() -> Mixing {
    let destinations = [vec![1, 2], vec![2], vec![3], vec![0]];
    Mixing::push(4, |rank| destinations[rank].iter().copied().collect::<BTreeSet<_>>()).unwrap()
}

#[test]
fn it_reaches_the_optimum_of_the_mean_as_the_learning_rate_falls() {
    let runs = [(Sgp::default(), 3), (Sgp::default(), 4), (Sgp::default(), 5)];
    let runs = runs.map(|(algorithm, ranks)| (AnyAlgorithm::from(algorithm), ranks));
    for (algorithm, ranks) in runs.into_iter().chain([(push(uneven()), 4)]) {
        let found = spawn(TransportKind::Thread, ranks, |comm| {
            let mut trainer = Trainer::new(&comm, algorithm.clone(), Setup::default(), &[vec![0.7f64]])?;
            for step in 0..1500 {
                trainer.engine().set_learning_rate(2.0 / (step + 20) as f64);
                trainer.step(|_, x| problem().gradient(comm.rank(), x))?;
            }
            Ok(trainer.parameters()?[0][0])
        });
        assert_near(&found.unwrap(), &vec![optimum(ranks); ranks], 1e-2);
    }
}

#[test]
fn over_an_uneven_graph_it_is_push_sum_by_hand() {
    // Column j has the shares that rank j sends, to itself and to one or two others, equally.
    let shares = [
        [1.0 / 3.0, 0.0, 0.0, 0.5],
        [1.0 / 3.0, 0.5, 0.0, 0.0],
        [1.0 / 3.0, 0.5, 0.5, 0.0],
        [0.0, 0.0, 0.5, 0.5],
    ];
    let mixed =
        |of: [f64; 4]| shares.map(|row| row.iter().zip(of).map(|(share, of)| share * of).sum::<f64>());
    let setup = Setup { learning_rate: 0.05, ..Setup::default() };
    let gradient = |rank: usize, step: usize, x: &[f64]| {
        let noise = ((rank * 5 + step * 3) % 7) as f64 / 7.0;
        vec![problem().a[rank] * (x[0] - problem().b[rank]) + noise]
    };
    let mut x = [0.7; 4];
    let mut w = [1.0; 4];
    for step in 0..12 {
        let stepped =
            std::array::from_fn(|rank| x[rank] - 0.05 * gradient(rank, step, &[x[rank] / w[rank]])[0]);
        x = mixed(stepped);
        w = mixed(w);
        let place = (TransportKind::Thread, 4);
        let found = train(place, &push(uneven()), &setup, &[0.7], step + 1, gradient).unwrap();
        let found: Vec<f64> = found.into_iter().map(|x| x[0]).collect();
        assert_near(&found, &[0, 1, 2, 3].map(|rank| x[rank] / w[rank]), 1e-13);
    }
    assert!(w.iter().any(|w| (w - 1.0).abs() > 0.2), "{w:?}");
}

#[test]
fn with_equal_curvatures_the_mean_is_the_optimum_at_any_learning_rate() {
    for ranks in [3, 4, 5] {
        let gradient = |rank: usize, _: usize, x: &[f64]| vec![x[0] - problem().b[rank]];
        let algorithm: Algorithm = Sgp::default().into();
        let place = (TransportKind::Thread, ranks);
        let found = train(place, &algorithm, &Setup::default(), &[0.7], 400, gradient).unwrap();
        let found: Vec<f64> = found.into_iter().map(|x| x[0]).collect();
        assert_near(&[mean(&found)], &[mean(&problem().b[..ranks])], 1e-14);
    }
}

#[test]
fn without_gradients_ranks_of_any_weights_come_to_the_mean() {
    let gradient = |rank: usize, step: usize, _: &[f64]| vec![if step == 0 { -(rank as f64) } else { 0.0 }];
    for transport in transports() {
        let setup = Setup { learning_rate: 1.0, ..Setup::default() };
        let found = train((transport, 4), &push(uneven()), &setup, &[0.0], 80, gradient).unwrap();
        let found: Vec<f64> = found.into_iter().map(|x| x[0]).collect();
        assert_near(&found, &[1.5; 4], 1e-13);
    }
}

#[test]
fn the_final_average_weighs_replicas_as_push_sum_does() {
    let gradient = |rank: usize, step: usize, _: &[f64]| vec![((rank * 5 + step * 3) % 7) as f64];
    let found = spawn(TransportKind::Thread, 4, |comm| {
        let mut trainer = Trainer::new(&comm, push(uneven()), Setup::default(), &[vec![2.0f64]])?;
        (0..9).try_for_each(|step| trainer.step(|_, x| gradient(comm.rank(), step, x)))?;
        let own = trainer.parameters()?[0][0];
        trainer.engine().average()?;
        let average = trainer.parameters()?[0][0];
        (9..12).try_for_each(|step| trainer.step(|_, x| gradient(comm.rank(), step, x)))?;
        trainer.engine().average()?;
        Ok((own, average, trainer.parameters()?[0][0]))
    });
    let found = found.unwrap();
    // The sum of all values equals that at the start, minus all steps.
    let after = |steps: usize| {
        let taken = (0..steps).flat_map(|step| (0..4).map(move |rank| gradient(rank, step, &[])[0]));
        2.0 - 0.1 * taken.sum::<f64>() / 4.0
    };
    let plain = found.iter().map(|(own, ..)| own).sum::<f64>() / 4.0;
    assert!((plain - after(9)).abs() > 1e-3, "{plain} would do, too");
    for (_, average, last) in &found {
        assert_near(&[*average, *last], &[after(9), after(12)], 1e-14);
    }
}

#[test]
fn where_all_weights_stay_1_it_is_d_psgd() {
    let gradient = |rank: usize, step: usize, x: &[f32]| {
        x.iter().map(|x| x * (rank + 1) as f32 - (step % 5) as f32).collect()
    };
    let twin = DPsgd { adapt_then_combine: true, ..DPsgd::with(Topology::OnePeerExponential) };
    let run = |algorithm: Algorithm| {
        train((TransportKind::Thread, 5), &algorithm, &Setup::default(), &[0.3; 70], 20, gradient).unwrap()
    };
    assert_eq!(run(Sgp::default().into()), run(twin.into()));
}

#[test]
fn the_bytes_are_those_of_its_header() {
    let with_weight = 1.0 + 8.0 / (4.0 * 32768.0);
    assert_sends(4, 4, &Sgp::default().into(), with_weight);
    assert_sends(5, 3, &Sgp::default().into(), with_weight);
    assert_sends(4, 2, &push(uneven()), 1.25 * with_weight);
}

#[test]
fn a_graph_that_loses_something_is_refused() {
    let rows = uneven().dense();
    let pulled = Mixing::of_matrix(4, &(0..16).map(|at| rows[at % 4 * 4 + at / 4]).collect::<Vec<_>>());
    let error = refusal(4, &push(pulled.unwrap()));
    assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains("a column"), "{error}");
}
