//! What the server does to requests before their handlers, over real sockets with a toy router.
//!
//! * `access`: host names, origins, keys.
//! * `bodies`: lengths, sizes, pace and JSON of bodies.
//! * `connections`: slow, idle, vanishing and too many clients; a port that is taken; the end.
//! * `files`: a process that may open no more files.
//! * `shapes`: errors that no handler makes, and the headers of all responses.
//! * `logs`: what is written of a request, and what never is.

mod access;
mod bodies;
mod connections;
mod files;
mod logs;
mod shapes;
mod toy;
