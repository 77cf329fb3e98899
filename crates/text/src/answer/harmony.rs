//! Messages on channels, as gpt-oss writes them.
