//! Tests that need no second process: how addresses are encoded, and which of them is chosen. All others run under
//! `mpirun`.

use super::interface::{from_bytes, own, to_bytes, towards};
use std::net::IpAddr;

#[test]
fn addresses_round_trip() {
    let addresses: Vec<IpAddr> = ["10.1.2.3", "2001:db8::7"].map(|text| text.parse().unwrap()).into();
    let two_hosts = [to_bytes(&addresses), to_bytes(&addresses[..1])].concat();
    assert_eq!(from_bytes(&two_hosts), [addresses[0], addresses[1], addresses[0]]);
    assert!(from_bytes(&to_bytes(&[])).is_empty());
}

#[test]
fn nobody_meets_on_loopback_or_at_an_address_that_both_hosts_have() {
    assert!(own().iter().all(|address| !address.is_loopback()));
    let error = towards(&own()).unwrap_err();
    assert!(error.to_string().contains("HEXAGRAM_INTERFACE"), "{error}");
    let loopback = "127.0.0.1".parse().unwrap();
    assert!(towards(&[loopback]).is_err());
}
