//! For every parameter in effect: the value it becomes here, and the test that shows what that does.
