@echo off
rem Builds mmswap's native kernels on Windows by hand, with a reason for whatever is missing.
rem
rem     scripts\build-windows.bat                     for the card that torch sees; found again without being named
rem     scripts\build-windows.bat gfx1100             for a named architecture, several with ";" in quotation marks
rem
rem Needs the HIP SDK (HIP_PATH names it) and the Visual Studio Build Tools with C++ (VCVARS64 names vcvars64.bat).
rem PYTHON names the python.exe in which mmswap is installed; MMSWAP_BUILD_ROOT the folder, MMSWAP_BUILD_CLEAN=0 keeps all.
setlocal
if not defined PYTHON set "PYTHON=python"
if not "%~1"=="" set "MMSWAP_HIP_ARCH=%~1"
"%PYTHON%" -X utf8 -c "import mmswap.hip_ext" 2>nul
if errorlevel 1 (
  echo mmswap is not installed in "%PYTHON%": let PYTHON name the python.exe that has it, or run: pip install mmswap
  exit /b 1
)
"%PYTHON%" -X utf8 -m mmswap.hip_ext.build
exit /b %errorlevel%
