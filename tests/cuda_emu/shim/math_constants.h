#pragma once

#include <limits>

#define CUDART_INF_F std::numeric_limits<float>::infinity()
#define CUDART_NAN_F std::numeric_limits<float>::quiet_NaN()
#define CUDART_MAX_NORMAL_F std::numeric_limits<float>::max()
#define CUDART_LN2_F 0.693147181f
#define CUDART_L2E_F 1.44269504f
#define CUDART_PI_F 3.14159265f
#define CUDART_INF std::numeric_limits<double>::infinity()
