//! Gossip-PGA: equivalent algorithms at both ends of its period, its rule by hand, and a codec.

use super::*;
use hexagram_algorithms::GradientAllReduce;
use hexagram_algorithms::logical::codec::{Codec, MinMax8};
use hexagram_algorithms::logical::decentralized::Schedule;

fn every(period: u64) -> Algorithm {
    GossipPga { period, ..GossipPga::default() }.into()
}

#[test]
fn with_a_period_of_1_it_is_averaged_sgd_and_with_a_long_one_d_psgd() {
    let averaged = train_quadratics(4, &GradientAllReduce.into(), 0.1, 30);
    assert_near(&train_quadratics(4, &every(1), 0.1, 30), &averaged, 1e-14);
    let plain = DPsgd { adapt_then_combine: true, ..DPsgd::default() };
    assert_near(&train_quadratics(5, &every(31), 0.1, 30), &train_quadratics(5, &plain.into(), 0.1, 30), 0.0);
}

#[test]
fn every_third_step_ends_with_the_exact_mean() {
    let ring = Topology::Ring.mixing(5, 0).unwrap();
    let mut x = vec![0.7; 5];
    for step in 0..11 {
        let next: Vec<f64> =
            x.iter().enumerate().map(|(rank, x)| x - 0.1 * problem().gradient(rank, &[*x])[0]).collect();
        let row = |rank: usize| ring.row(rank).iter().map(|(from, weight)| weight * next[*from]).sum::<f64>();
        x = (0..5).map(|rank| if step % 3 == 2 { mean(&next) } else { row(rank) }).collect();
    }
    assert_near(&train_quadratics(5, &every(3), 0.1, 11), &x, 1e-14);
}

#[test]
fn with_a_codec_the_mean_still_follows_the_mean_gradient() {
    let codec: Option<Arc<dyn Codec>> = Some(Arc::new(MinMax8::default()));
    let gossip = Gossip { codec, ..Gossip::over(Topology::Ring) };
    let algorithm: Algorithm = GossipPga { gossip, period: 4 }.into();
    assert!(!algorithm.trigram().full_precision);
    let gradient = |rank: usize, step: usize, x: &[f32]| vec![((rank * 5 + step * 3) % 7) as f32; x.len()];
    let place = (TransportKind::Thread, 4);
    let found = train(place, &algorithm, &Setup::default(), &[2.0; 9], 24, gradient).unwrap();
    let all = (0..24).flat_map(|step| (0..4).map(move |rank| f64::from(gradient(rank, step, &[0.0])[0])));
    let expected = 2.0 - 0.1 * all.sum::<f64>() / 4.0;
    // The last step ended with an exact mean.
    assert!(found.iter().all(|x| (f64::from(x[3]) - expected).abs() < 1e-4), "{found:?} and not {expected}");
}

#[test]
fn a_period_of_0_is_refused() {
    let error = refusal(2, &every(0)).to_string();
    assert!(error.contains("period"), "{error}");
}
