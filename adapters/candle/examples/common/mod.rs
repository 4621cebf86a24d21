//! Parts that the examples share: data, models, and the device.

#![allow(dead_code, reason = "no example needs all of it")]

pub(crate) mod batches;
pub(crate) mod data;
pub(crate) mod device;
pub(crate) mod model;
pub(crate) mod net;
pub(crate) mod resnet;
pub(crate) mod trained;
