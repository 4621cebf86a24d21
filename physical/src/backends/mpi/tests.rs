//! Tests that need no second process. All others run under `mpirun`.

use super::MpiBackend;
use crate::bootstrap::{Launcher, Placement, Rendezvous};
use crate::error::Error;
use crate::transport::{Backend, Site, TransportKind};
use crate::world::JoinOptions;

#[test]
fn a_place_that_mpi_did_not_tell_is_of_no_use() {
    let rendezvous = Rendezvous::Local("hexagram-nobody".to_owned());
    let launcher = Launcher::Torchrun;
    let secret = Vec::new();
    let placement =
        Placement { rank: 0, size: 2, local_rank: 0, local_size: 2, rendezvous, secret, launcher };
    let options = JoinOptions { transport: TransportKind::Mpi, ..JoinOptions::default() };
    let site = Site { placement: &placement, options: &options, interfaces: &[], tls: None };
    let error = MpiBackend.prepare(&site).err().unwrap();
    assert!(matches!(&error, Error::Setup { .. }) && error.to_string().contains("mpirun"), "{error}");
}
