//! Plain Python values as arguments and results: names of element types, whole numbers, saved states.

pub(crate) mod dtype;
pub(crate) mod state;
pub(crate) mod whole;
