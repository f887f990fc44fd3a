//! Metal Shading Language as a source for other compilers: reads kernels, tells what their entry points take, and
//! rewrites what C++ cannot hold.
