//! What holds for every partition, and the statistics of the drawn ones against closed forms.

use super::*;

const KINDS: [Partition; 6] = [
    Partition::Equal,
    Partition::Dirichlet { alpha: 0.1 },
    Partition::Dirichlet { alpha: 1e6 },
    Partition::Shards { per_rank: 2 },
    Partition::Quantity { alpha: 0.5 },
    Partition::Quantity { alpha: 1e6 },
];

fn labels(len: usize, labels: usize) -> Vec<usize> {
    (0..len).map(|sample| sample % labels * 3).collect()
}

#[test]
fn every_sample_is_in_one_share() {
    for kind in KINDS {
        for (len, of, ranks) in [(2, 1, 1), (50, 7, 25), (100, 10, 4), (101, 3, 7), (64, 64, 8)] {
            let shares = kind.shares(&labels(len, of), ranks, 7).unwrap();
            assert_eq!(shares.len(), ranks);
            assert!(shares.iter().all(|share| !share.is_empty()), "{kind}");
            let mut all = shares.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..len), "{kind} of {len} over {ranks}");
        }
    }
}

#[test]
fn shares_are_equal_where_they_are_said_to_be() {
    for kind in &KINDS[..4] {
        let shares = kind.shares(&labels(1003, 10), 8, 3).unwrap();
        let sizes = || shares.iter().map(Vec::len);
        assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 2, "{kind}");
    }
}

#[test]
fn the_seed_decides_and_nothing_else() {
    for kind in KINDS {
        let shares = |seed| kind.shares(&labels(500, 10), 5, seed).unwrap();
        assert_eq!(shares(4), shares(4));
        assert_ne!(shares(4), shares(5), "{kind}");
    }
}

/// The same on every machine: only exact arithmetic is in it. The shares were found by a program of ten lines in
/// another language, with a Mersenne Twister of its own.
#[test]
fn a_known_seed_gives_known_shares() {
    let shares = Partition::Dirichlet { alpha: 0.5 }.shares(&labels(12, 3), 3, 1).unwrap();
    assert_eq!(shares, [[9, 2, 3, 5], [7, 4, 0, 11], [10, 1, 6, 8]]);
}

/// Share of ranks, over many seeds, whose first `together` samples have one label.
fn alike(alpha: f64, of: usize, together: usize) -> f64 {
    let labels = labels(1000, of);
    let ranks = 25;
    let mut found = 0;
    for seed in 0..80 {
        let shares = Partition::Dirichlet { alpha }.shares(&labels, ranks, seed).unwrap();
        found += shares
            .iter()
            .filter(|share| share[..together].iter().all(|&sample| labels[sample] == labels[share[0]]))
            .count();
    }
    found as f64 / (80 * ranks) as f64
}

/// Two draws of a mix ~ Dirichlet(α, …, α) of K labels agree with probability (1 + α) / (1 + K α), and three with
/// probability (1 + α)(2 + α) / ((1 + K α)(2 + K α)). Of 2000 ranks the standard deviation of a share is 0.0112 at
/// most.
#[test]
fn labels_of_a_rank_agree_as_dirichlet_says() {
    for alpha in [0.1, 1.0, 100.0] {
        for of in [4.0, 10.0] {
            let two = (1.0 + alpha) / (1.0 + of * alpha);
            let three = two * (2.0 + alpha) / (2.0 + of * alpha);
            for (together, expected) in [(2, two), (3, three)] {
                let found = alike(alpha, of as usize, together);
                assert!((found - expected).abs() < 0.045, "α {alpha}, K {of}: {found} for {expected}");
            }
        }
    }
}

/// Mean of the share of a rank's most frequent label.
fn purity(kind: Partition, ranks: usize) -> f64 {
    let labels = labels(1000, 10);
    let shares = kind.shares(&labels, ranks, 11).unwrap();
    let of = |share: &Vec<usize>, label: usize| share.iter().filter(|&&s| labels[s] == label).count();
    let most = |share: &Vec<usize>| labels[..10].iter().map(|&label| of(share, label)).max().unwrap();
    shares.iter().map(|share| most(share) as f64 / share.len() as f64).sum::<f64>() / ranks as f64
}

#[test]
fn the_smaller_alpha_the_fewer_labels_a_rank_has() {
    let dirichlet = |alpha| purity(Partition::Dirichlet { alpha }, 10);
    let found =
        [dirichlet(0.01), dirichlet(0.1), dirichlet(1.0), dirichlet(1e6), purity(Partition::Equal, 10)];
    assert!(found.windows(2).all(|pair| pair[0] > pair[1] - 0.02), "{found:?}");
    assert!(found[0] > 0.5 && found[3] < 0.2, "{found:?}");
}

#[test]
fn shards_leave_few_labels_to_a_rank() {
    let labels = labels(1000, 10);
    for share in (Partition::Shards { per_rank: 2 }).shares(&labels, 10, 2).unwrap() {
        let mut of: Vec<usize> = share.iter().map(|&sample| labels[sample]).collect();
        of.sort_unstable();
        of.dedup();
        assert!(of.len() <= 2, "{of:?}");
    }
}

/// Shares of a Dirichlet(α) over n ranks have the variance (1/n)(1 − 1/n) / (n α + 1).
#[test]
fn quantities_vary_as_dirichlet_says() {
    let ranks = 5.0;
    for alpha in [0.5, 5.0] {
        let mut variance = 0.0;
        for seed in 0..400 {
            let shares = Partition::Quantity { alpha }.shares(&labels(1000, 4), 5, seed).unwrap();
            let from_mean = |share: &Vec<usize>| (share.len() as f64 / 1000.0 - 1.0 / ranks).powi(2);
            variance += shares.iter().map(from_mean).sum::<f64>() / ranks / 400.0;
        }
        let expected = (1.0 - 1.0 / ranks) / ranks / (ranks * alpha + 1.0);
        assert!((variance / expected - 1.0).abs() < 0.15, "{variance} for {expected}");
    }
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let refused = |kind: Partition, len, ranks| {
        let labels = labels(len, 3);
        kind.shares(&labels, ranks, 0).unwrap_err().to_string()
    };
    assert!(refused(Partition::Equal, 0, 1).contains("no samples"));
    assert!(refused(Partition::Equal, 3, 0).contains("the number of ranks"));
    assert!(refused(Partition::Equal, 3, 4).contains("3 samples cannot be divided into 4 parts"));
    assert!(refused(Partition::Shards { per_rank: 2 }, 7, 4).contains("into 8 parts"));
    assert!(refused(Partition::Shards { per_rank: 0 }, 7, 4).contains("`per_rank` cannot be 0"));
    for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        for kind in [Partition::Dirichlet { alpha }, Partition::Quantity { alpha }] {
            assert!(refused(kind, 9, 3).contains("`alpha` cannot be"), "{kind}");
        }
    }
}
