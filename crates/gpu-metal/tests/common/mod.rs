//! What the driver's tests share: a model of Metal's rules, faults to plant, and networks without data.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test program uses a part")]

pub mod contract;
pub mod declared;
pub mod files;
pub mod network;
