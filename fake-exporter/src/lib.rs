//! (to come)

pub mod model;
