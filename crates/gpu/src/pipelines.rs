//! Pipelines that a driver has made: entry points with function constants.

use crate::dispatch::Dispatch;
use std::collections::HashMap;

/// What a driver made of each entry point and the function constants that dispatches give it.
///
/// Looked up for every dispatch that runs, so a key is compared and not built.
#[derive(Debug)]
pub struct Pipelines<P>(HashMap<&'static str, Vec<(Constants, P)>>);

/// Function constants by index, as [`Dispatch::constants`] has them.
type Constants = Vec<(u32, u32)>;

impl<P> Default for Pipelines<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P> Pipelines<P> {
    /// The pipeline that a dispatch needs, if it was made.
    #[must_use]
    pub fn get(&self, dispatch: &Dispatch) -> Option<&P> {
        let variants = self.0.get(dispatch.entry)?;
        let same = variants.iter().find(|(constants, _)| *constants == dispatch.constants);
        same.map(|(_, pipeline)| pipeline)
    }

    /// Keeps the pipeline that a dispatch needs.
    pub fn insert(&mut self, dispatch: &Dispatch, pipeline: P) {
        let variants = self.0.entry(dispatch.entry).or_default();
        variants.push((dispatch.constants.clone(), pipeline));
    }
}
