package test

var _ int32 = 1 << 40
