// Owns the precompiled header that the tests share (tests/CMakeLists.txt).
int main() { return 0; }
