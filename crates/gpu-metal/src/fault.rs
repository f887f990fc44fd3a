//! How a command buffer fails, as `MTLCommandBuffer.error` says it.

/// Why a command buffer did not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// `MTLCommandBufferErrorTimeout`: the system stopped it because it took too long, or held up the display.
    #[error("the system stopped the GPU because it took too long ({0})")]
    Timeout(String),
    /// `MTLCommandBufferErrorPageFault`: a kernel touched what is not mapped.
    #[error("a kernel accessed memory that it does not have ({0})")]
    PageFault(String),
    /// `MTLCommandBufferErrorAccessRevoked`: this process had too many timeouts.
    #[error("the system lets this process use the GPU no more; start it again ({0})")]
    AccessRevoked(String),
    /// `MTLCommandBufferErrorNotPermitted`: this process may not use the device, as in the background.
    #[error("the system does not permit this process to use the GPU now ({0})")]
    NotPermitted(String),
    /// `MTLCommandBufferErrorOutOfMemory`: memory could not be made resident.
    #[error(
        "there was not the memory to run on the GPU; use a smaller context or fewer sequences ({0})"
    )]
    OutOfMemory(String),
    /// `MTLCommandBufferErrorInvalidResource`: a buffer was released too early.
    #[error("a command referred to a buffer that is gone ({0})")]
    InvalidResource(String),
    /// `MTLCommandBufferErrorDeviceRemoved`
    #[error("the GPU was removed ({0})")]
    DeviceRemoved(String),
    /// `MTLCommandBufferErrorStackOverflow`
    #[error("a kernel used up its stack ({0})")]
    StackOverflow(String),
    /// `MTLCommandBufferErrorInternal`, or a code that is not listed.
    #[error("the GPU failed with code {code} ({message})")]
    Other {
        /// Code of the error; 0 if there was none.
        code: i64,
        /// What Metal says.
        message: String,
    },
    /// The command buffer has another status than completed or error after it was waited for.
    #[error("a command buffer ended with status {0}, which is neither completed nor error")]
    Status(u64),
}

impl Fault {
    /// The fault of an error of `MTLCommandBufferErrorDomain`.
    #[must_use]
    pub fn of_code(code: i64, message: String) -> Self {
        match code {
            2 => Self::Timeout(message),
            3 => Self::PageFault(message),
            4 => Self::AccessRevoked(message),
            7 => Self::NotPermitted(message),
            8 => Self::OutOfMemory(message),
            9 => Self::InvalidResource(message),
            11 => Self::DeviceRemoved(message),
            12 => Self::StackOverflow(message),
            code => Self::Other { code, message },
        }
    }

    /// Whether no further command buffer of this process can complete.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::AccessRevoked(_) | Self::DeviceRemoved(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_apples_header() {
        let fault = |code| Fault::of_code(code, "IOGPU".to_owned());
        assert_eq!(fault(2), Fault::Timeout("IOGPU".to_owned()));
        assert_eq!(fault(8), Fault::OutOfMemory("IOGPU".to_owned()));
        assert_eq!(fault(1), Fault::Other { code: 1, message: "IOGPU".to_owned() });
        let last: Vec<i64> = (0..14).filter(|&code| fault(code).is_final()).collect();
        assert_eq!(last, [4, 11]);
        for code in 0..14 {
            assert!(fault(code).to_string().contains("IOGPU"), "{code}");
        }
    }
}
