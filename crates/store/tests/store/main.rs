//! The store through its interface, on directories that are good, damaged and hostile.

mod damage;
mod hostile;
mod limits;
mod sharing;
mod tools;
