//! [`Api`] of a system without Metal: there is no value of it, so that nothing can be called.

use crate::api::{Api, Ended, Language, PipelineLimits};
use crate::capabilities::Capabilities;
use crate::fault::Fault;
use calla_gpu::{Dispatch, MappedPages};
use std::path::Path;

/// No device.
#[derive(Clone, Copy, Debug)]
pub enum NoMetal {}

impl Api for NoMetal {
    type Library = Self;
    type Function = Self;
    type Pipeline = Self;
    type Buffer = Self;
    type CommandBuffer = Self;
    type Encoder = Self;
    type Archive = Self;

    fn capabilities(&self) -> &Capabilities {
        match *self {}
    }

    fn library(&mut self, _: &str, _: &str, _: Language) -> Result<Self::Library, String> {
        match *self {}
    }

    fn entries(&self, _: &Self::Library) -> Vec<String> {
        match *self {}
    }

    fn function(
        &mut self,
        _: &Self::Library,
        _: &str,
        _: &[(u32, u32)],
    ) -> Result<Self::Function, String> {
        match *self {}
    }

    fn pipeline(&mut self, _: &Self::Function) -> Result<Self::Pipeline, String> {
        match *self {}
    }

    fn archive(&mut self, _: Option<&Path>) -> Result<Self::Archive, String> {
        match *self {}
    }

    fn archived_pipeline(
        &mut self,
        _: &Self::Archive,
        _: &Self::Function,
    ) -> Option<Self::Pipeline> {
        match *self {}
    }

    fn add_to_archive(&mut self, _: &Self::Archive, _: &Self::Function) -> Result<(), String> {
        match *self {}
    }

    fn serialize(&mut self, _: &Self::Archive, _: &Path) -> Result<(), String> {
        match *self {}
    }

    fn limits(&self, _: &Self::Pipeline) -> PipelineLimits {
        match *self {}
    }

    fn buffer(&mut self, _: &str, _: u64) -> Option<Self::Buffer> {
        match *self {}
    }

    fn buffer_no_copy(&mut self, _: &str, _: MappedPages) -> Option<Self::Buffer> {
        match *self {}
    }

    fn release(&mut self, _: Self::Buffer) {
        match *self {}
    }

    fn write(&mut self, _: &Self::Buffer, _: u64, _: &[u8]) {
        match *self {}
    }

    fn read(&mut self, _: &Self::Buffer, _: u64, _: &mut [u8]) {
        match *self {}
    }

    fn command_buffer(&mut self, _: &str) -> Option<Self::CommandBuffer> {
        match *self {}
    }

    fn encoder(&mut self, _: &Self::CommandBuffer, _: &str) -> Option<Self::Encoder> {
        match *self {}
    }

    fn describe(&mut self, _: &Self::Encoder, _: &Dispatch) {
        match *self {}
    }

    fn set_pipeline(&mut self, _: &Self::Encoder, _: &Self::Pipeline) {
        match *self {}
    }

    fn set_buffer(&mut self, _: &Self::Encoder, _: u32, _: &Self::Buffer, _: u64) {
        match *self {}
    }

    fn set_bytes(&mut self, _: &Self::Encoder, _: u32, _: &[u8]) {
        match *self {}
    }

    fn dispatch(&mut self, _: &Self::Encoder, _: [u32; 3], _: [u32; 3]) {
        match *self {}
    }

    fn barrier(&mut self, _: &Self::Encoder) {
        match *self {}
    }

    fn end(&mut self, _: Self::Encoder) {
        match *self {}
    }

    fn commit(&mut self, _: &Self::CommandBuffer) {
        match *self {}
    }

    fn wait(&mut self, _: Self::CommandBuffer) -> Result<Ended, Fault> {
        match *self {}
    }
}
