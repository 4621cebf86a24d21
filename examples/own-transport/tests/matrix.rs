//! The guarantees of every transport, and a collective over it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram::physical::testing::transport::Matrix;
use hexagram::{Error, ReduceOp, TransportKind, testing};
use hexagram_own_transport::loopback;

hexagram::physical::transport_matrix!(Matrix::Only(loopback().unwrap()));

#[test]
fn collectives_run_over_it() {
    let kind = loopback().unwrap();
    for ranks in [1, 2, 3, 8] {
        let sums = testing::spawn(kind, ranks, |comm| {
            let mut data = vec![comm.rank() as f32; 100_003];
            comm.blocking().all_reduce(&mut data, ReduceOp::Sum)?;
            assert_eq!(comm.world().transport(), kind);
            Ok(data[100_002])
        });
        assert_eq!(sums.unwrap(), vec![(0..ranks).sum::<usize>() as f32; ranks]);
    }
}

#[test]
fn it_is_chosen_by_its_name() {
    let kind = loopback().unwrap();
    assert_eq!("loopback".parse::<TransportKind>().unwrap(), kind);
    assert!(matches!(hexagram::physical::transport::register("loopback", Nobody), Err(Error::Usage { .. })));
}

struct Nobody;

impl hexagram::physical::transport::Backend for Nobody {
    fn prepare(
        &self,
        _site: &hexagram::physical::transport::Site<'_>,
    ) -> hexagram::Result<Box<dyn hexagram::physical::transport::Prepared>> {
        Err(Error::usage("no rank is reachable", "choose a different transport"))
    }
}
