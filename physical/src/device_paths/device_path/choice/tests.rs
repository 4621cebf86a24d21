//! The choice as a function of what all ranks say.

use super::*;

const ALL: AvailablePaths = AvailablePaths { ipc: true, nccl: true };
const NONE: AvailablePaths = AvailablePaths { ipc: false, nccl: false };

fn identity(place: RankMemory) -> RankFacts {
    RankFacts { wish: PathPreference::Auto, process: [7; 16], endpoint: 1 << 40, place }
}

/// A rank on the GPU of this number, which reaches those.
fn on(gpu: u8, reaches: &[u8], nccl: u32) -> RankFacts {
    let reaches = reaches.iter().map(|gpu| [*gpu; 16]).collect();
    identity(RankMemory::Gpu(GpuFacts { uuid: [gpu; 16], place: gpu.into(), reaches, nccl }))
}

/// A rank on a slice of this number, of the GPU on this place of the bus.
fn on_slice(slice: u8, place: u64) -> RankFacts {
    identity(RankMemory::Gpu(GpuFacts { uuid: [slice; 16], place, reaches: Vec::new(), nccl: 23_004 }))
}

fn wishing(wish: &str, all: &[RankFacts]) -> Vec<RankFacts> {
    let wish = PathPreference::parse(wish).unwrap();
    all.iter().map(|identity| RankFacts { wish, ..identity.clone() }).collect()
}

fn refusal(wish: &str, all: &[RankFacts], means: AvailablePaths) -> String {
    choose(&wishing(wish, all), means).unwrap_err().to_string()
}

#[test]
fn identities_round_trip_and_what_is_unknown_is_refused() {
    let many: Vec<u8> = (0..MOST_GPUS as u8).collect();
    for identity in [
        identity(RankMemory::Host),
        identity(RankMemory::Elsewhere),
        on(3, &[], 0),
        RankFacts { wish: PathPreference::Only(TransportKind::Nccl), ..on(9, &many, 23_004) },
    ] {
        let bytes = identity.to_bytes();
        assert_eq!(RankFacts::from_bytes(&bytes), Some(identity));
        assert_eq!(RankFacts::from_bytes(&bytes[..30]), None);
    }
    let bytes = on(1, &[2], 0).to_bytes();
    let damage = |at: usize, by: u8| {
        let mut bytes = bytes;
        bytes[at] = by;
        bytes
    };
    let count = BYTES - 16 * MOST_GPUS - 1;
    for damaged in [damage(0, 4), damage(1, 3), damage(count, MOST_GPUS as u8 + 1)] {
        assert_eq!(RankFacts::from_bytes(&damaged), None);
    }
}

#[test]
fn one_gpu_is_shared_and_several_are_connected_by_the_best_way_there_is() {
    let ipc = Some(TransportKind::Ipc);
    let nccl = Some(TransportKind::Nccl);
    let one_gpu = [on(1, &[], 23_004), on(1, &[], 23_004)];
    let two_gpus = [on(1, &[2], 23_004), on(2, &[1], 23_004)];
    let two_far_gpus = [on(1, &[], 23_004), on(2, &[], 23_004)];
    let without_nccl = [on(1, &[2], 0), on(2, &[1], 0)];
    let slices = [on_slice(1, 9), on_slice(2, 9)];
    let with_host = [on(1, &[], 23_004), identity(RankMemory::Host)];
    let with_another = [on(1, &[], 23_004), identity(RankMemory::Elsewhere)];
    for (all, means, want) in [
        (&one_gpu, ALL, ipc),
        (&one_gpu, NONE, None),
        (&two_gpus, ALL, nccl),
        (&two_gpus, AvailablePaths { nccl: false, ..ALL }, ipc),
        (&two_far_gpus, ALL, nccl),
        (&two_far_gpus, AvailablePaths { nccl: false, ..ALL }, None),
        (&without_nccl, ALL, ipc),
        (&without_nccl, AvailablePaths { ipc: false, ..ALL }, None),
        (&slices, ALL, None),
        (&with_host, ALL, None),
        (&with_another, ALL, None),
    ] {
        assert_eq!(choose(all, means).unwrap(), want, "{all:?}, {means:?}");
        assert_eq!(choose(&wishing("staging", all), means).unwrap(), None);
    }
    assert_eq!(choose(&vec![on(1, &[], 0); MOST_RANKS], ALL).unwrap(), ipc);
    assert_eq!(choose(&vec![on(1, &[], 0); MOST_RANKS + 1], ALL).unwrap(), None);
    let host = vec![identity(RankMemory::Host); 3];
    for wish in ["auto", "staging", "ipc", "nccl"] {
        assert_eq!(choose(&wishing(wish, &host), ALL).unwrap(), None, "ranks on the host need no path");
    }
}

#[test]
fn a_wish_is_granted_or_refused_with_the_reason() {
    let gpus = [on(1, &[2], 23_004), on(2, &[1], 23_004)];
    assert_eq!(choose(&wishing("ipc", &gpus), ALL).unwrap(), Some(TransportKind::Ipc));
    assert_eq!(choose(&wishing("nccl", &gpus), ALL).unwrap(), Some(TransportKind::Nccl));
    for (wish, all, means, why) in [
        ("ipc", &gpus[..], NONE, "share no memory"),
        ("ipc", &[on(1, &[2], 0), on(2, &[], 0)], ALL, "GPU of rank 1 does not reach the memory of rank 0's"),
        ("ipc", &[on(1, &[], 0), identity(RankMemory::Host)], ALL, "the memory of rank 1 is not on a GPU"),
        ("nccl", &gpus[..], NONE, "no NCCL"),
        ("nccl", &[on(1, &[], 23_004), on(2, &[], 0)], ALL, "rank 1 finds no NCCL that can be used"),
        ("nccl", &[on(1, &[], 23_004), on(2, &[], 22_000)], ALL, "rank 0 has NCCL 2.30.4, rank 1 2.20.0"),
        ("nccl", &[on(1, &[], 5), on(2, &[], 5), on(1, &[], 5)], ALL, "ranks 0 and 2 are on one GPU"),
        ("nccl", &[on_slice(1, 9), on_slice(2, 9)], ALL, "ranks 0 and 1 are on slices of one GPU"),
    ] {
        let error = refusal(wish, all, means);
        let setting = format!("HEXAGRAM_DEVICE_PATH={wish} is impossible: ");
        assert!(error.starts_with(&setting) && error.contains(why) && !error.contains('\n'), "{error}");
    }
    let mut all = wishing("ipc", &gpus);
    all[1].wish = PathPreference::Staging;
    let error = choose(&all, ALL).unwrap_err().to_string();
    assert!(error.contains("rank 1 HEXAGRAM_DEVICE_PATH=staging"), "{error}");
}
