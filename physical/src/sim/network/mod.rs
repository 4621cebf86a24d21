//! The network: routes, shares of links, and the transfer of messages.

pub(super) mod flows;
pub(super) mod messages;
pub(super) mod rates;
pub(super) mod routes;
pub(super) mod wires;
